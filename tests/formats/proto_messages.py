"""Message classes of the protobuf runtime in a descriptor pool of their own."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto


def add_field(message, name, number, kind, *, repeated=False, packed=None, oneof=False):
    field = message.field.add(name=name, number=number)
    field.label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
    if kind.startswith("."):
        field.type, field.type_name = FIELD.TYPE_MESSAGE, kind
    else:
        field.type = getattr(FIELD, f"TYPE_{kind.upper()}")
    if packed is not None:
        field.options.packed = packed
    if oneof:
        field.oneof_index = 0


def add_map(message, full_name, name, number, kind):
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, "string")
    add_field(entry, "value", 2, kind)
    add_field(message, name, number, f"{full_name}.{entry.name}", repeated=True)


def record_file(*, packed):
    file = descriptor_pb2.FileDescriptorProto(name="record.proto", package="aialgs.data", syntax="proto2")
    for name, kind in (("Float32Tensor", "float"), ("Float64Tensor", "double"), ("Int32Tensor", "int32")):
        tensor = file.message_type.add(name=name)
        for number, field, type_ in ((1, "values", kind), (2, "keys", "uint64"), (3, "shape", "uint64")):
            add_field(tensor, field, number, type_, repeated=True, packed=packed)
    tensor = file.message_type.add(name="Bytes")
    add_field(tensor, "value", 1, "bytes", repeated=True)
    add_field(tensor, "content_type", 2, "string")
    value = file.message_type.add(name="Value")
    value.oneof_decl.add(name="value")
    for name, number, kind in (
        ("float32_tensor", 2, "Float32Tensor"),
        ("float64_tensor", 3, "Float64Tensor"),
        ("int32_tensor", 7, "Int32Tensor"),
        ("bytes", 9, "Bytes"),
    ):
        add_field(value, name, number, f".aialgs.data.{kind}", oneof=True)
    record = file.message_type.add(name="Record")
    add_map(record, ".aialgs.data.Record", "features", 1, ".aialgs.data.Value")
    add_map(record, ".aialgs.data.Record", "label", 2, ".aialgs.data.Value")
    for number, name in ((3, "uid"), (4, "metadata"), (5, "configuration")):
        add_field(record, name, number, "string")
    return file


def example_file(*, packed):
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, kind in (("BytesList", "bytes"), ("FloatList", "float"), ("Int64List", "int64")):
        tensor = file.message_type.add(name=name)
        add_field(tensor, "value", 1, kind, repeated=True, packed=None if kind == "bytes" else packed)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        add_field(feature, name, number, f".tensorflow.{kind}", oneof=True)
    features = file.message_type.add(name="Features")
    add_map(features, ".tensorflow.Features", "feature", 1, ".tensorflow.Feature")
    add_field(file.message_type.add(name="Example"), "features", 1, ".tensorflow.Features")
    return file


def message_class(file, name):
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


RECORDS = {packed: message_class(record_file(packed=packed), "Record") for packed in (True, False)}
EXAMPLES = {packed: message_class(example_file(packed=packed), "Example") for packed in (True, False)}


def record(*, packed=True, label=None, uid=None, **tensors):
    """Return a serialized Record, given the oneof member and its content by feature name."""
    message = RECORDS[packed]()
    for name, (member, values) in tensors.items():
        tensor = getattr(message.features[name], member)
        if isinstance(values, dict):
            for field, items in values.items():
                getattr(tensor, field).extend(items)
        else:
            (tensor.value if member == "bytes" else tensor.values).extend(values)
        tensor.SetInParent()
    if label is not None:
        message.label["values"].float32_tensor.values.append(label)
    if uid is not None:
        message.uid = uid
    return message.SerializeToString(deterministic=True)


def example(*, packed=True, **lists):
    """Return a serialized Example, given the oneof member and its values by feature name."""
    message = EXAMPLES[packed]()
    for name, (member, values) in lists.items():
        tensor = getattr(message.features.feature[name], member)
        tensor.value.extend(values)
        tensor.SetInParent()
    return message.SerializeToString(deterministic=True)
