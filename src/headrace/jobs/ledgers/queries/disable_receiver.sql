UPDATE headrace_receiver SET disabled_why = :why WHERE id = :id RETURNING id
