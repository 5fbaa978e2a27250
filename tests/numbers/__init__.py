"""The operations' numbers against implementations that share no code with them."""
