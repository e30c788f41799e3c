UPDATE headrace_endpoint SET disabled_why = :why WHERE id = :id RETURNING id
