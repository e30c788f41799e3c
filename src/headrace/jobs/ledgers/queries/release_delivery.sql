UPDATE headrace_notification SET state = 'waiting', attempts = attempts - 1
WHERE id = :id AND fence = :fence AND state = 'claimed'
RETURNING id
