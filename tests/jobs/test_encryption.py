"""The encryption key: its file, and texts that only it decrypts in their context."""

import base64
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.encryption import KEY_BYTES, EncryptionKey, create_key_file

KEYS = [bytes([n]) * KEY_BYTES for n in range(3)]
KEY = EncryptionKey(KEYS[:1])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)


@given(text=TEXTS, context=TEXTS)
def test_text_is_decrypted_by_its_key_in_its_context_only(text, context):
    hidden = KEY.encrypt(text, context)
    assert hidden == KEY.encrypt(text, context), "equal secrets share the health of their webhook"
    assert KEY.decrypt(hidden, context) == text
    if len(text) > 8:
        assert text not in hidden
    for other, elsewhere in ((KEY, f"{context}!"), (EncryptionKey(KEYS[1:2]), context)):
        with pytest.raises(ConfigError, match="no key of the encryption key file"):
            other.decrypt(hidden, elsewhere)


@given(text=TEXTS, at=st.integers(0), flip=st.integers(1, 255))
def test_changed_text_is_refused(text, at, flip):
    prefix, _, encoded = KEY.encrypt(text, "c").rpartition(":")
    sealed = bytearray(base64.b64decode(encoded))
    sealed[at % len(sealed)] ^= flip
    with pytest.raises(ConfigError):
        KEY.decrypt(f"{prefix}:{base64.b64encode(sealed).decode()}", "c")


@for_each("damaged", ["encrypted:v1:", "encrypted:v1:*", "encrypted:v1:AAAA"])
def test_damaged_text_is_refused(damaged):
    with pytest.raises(ConfigError):
        KEY.decrypt(damaged, "c")


def test_text_of_an_earlier_version_is_not_encrypted():
    assert KEY.decrypt("whsec_plain", "c") == "whsec_plain"


def test_replaced_key_still_decrypts():
    hidden = KEY.encrypt("secret", "c")
    replaced = EncryptionKey([KEYS[1], KEYS[0]])
    assert replaced.decrypt(hidden, "c") == "secret"
    assert replaced.encrypt("secret", "c") == EncryptionKey(KEYS[1:2]).encrypt("secret", "c")


def test_purposes_have_different_keys():
    derived = {
        KEY.derive("sessions"),
        KEY.derive("other"),
        EncryptionKey(KEYS[1:2]).derive("sessions"),
        KEYS[0],
    }
    assert [len(derived), *map(len, derived)] == [4, *[KEY_BYTES] * 4]


def test_created_file_is_private_and_stays(tmp_path):
    path = tmp_path / "encryption.key"
    create_key_file(path)
    written = path.read_bytes()
    create_key_file(path)
    assert path.read_bytes() == written
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert EncryptionKey.load(path).encrypt("a", "c") != KEY.encrypt("a", "c")


def test_concurrent_creators_agree_on_one_key(tmp_path):
    path, ready, seen = tmp_path / "encryption.key", threading.Barrier(8), []

    def create():
        ready.wait()
        create_key_file(path)
        seen.append(EncryptionKey.load(path).derive("x"))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(seen), len(set(seen)), list(tmp_path.iterdir())) == (8, 1, [path])


def test_file_may_have_comments_and_several_keys(tmp_path):
    path = tmp_path / "encryption.key"
    lines = [base64.b64encode(key).decode() for key in KEYS[:2]]
    path.write_text(f"# new\n{lines[1]}\n\n# old\n {lines[0]}\n")
    path.chmod(0o600)
    key = EncryptionKey.load(path)
    assert key.decrypt(KEY.encrypt("a", "c"), "c") == "a"
    assert key.derive("x") == EncryptionKey(KEYS[1:2]).derive("x")


@for_each("text", ["", "# none\n", "AAAA\n", "not base64!\n", base64.b64encode(bytes(33)).decode(), "ü"])
def test_invalid_file_is_refused_without_quoting_it(tmp_path, text):
    path = tmp_path / "encryption.key"
    path.write_text(text)
    with pytest.raises(ConfigError, match="openssl rand") as raised:
        EncryptionKey.load(path)
    assert str(path) in str(raised.value)
    assert not text.strip() or text.strip() not in str(raised.value)


def test_file_that_others_can_read_is_reported(tmp_path, caplog):
    path = tmp_path / "encryption.key"
    create_key_file(path)
    EncryptionKey.load(path)
    assert not caplog.records
    path.chmod(0o644)
    EncryptionKey.load(path)
    assert "chmod 600" in caplog.text


@for_each(
    ("mode", "reported"),
    [(0o400, False), (0o440, False), (0o640, False), (0o444, True), (0o441, True)],
)
def test_file_of_another_owner_may_be_open_to_the_group(tmp_path, caplog, monkeypatch, mode, reported):
    caplog.clear()
    path = tmp_path / f"key-{mode:o}"
    create_key_file(path)
    path.chmod(mode)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    EncryptionKey.load(path)
    assert ("chmod 600" in caplog.text) is reported


def test_folder_without_permission_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot create the encryption key"):
        create_key_file(tmp_path / "file" / "encryption.key")
