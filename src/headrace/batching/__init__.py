"""When a batch closes, and which row of a failing one is guilty. Pure: `now` is an argument."""
