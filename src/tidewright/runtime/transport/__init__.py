"""What processes share: sealed memory, rings of tasks, messages over unix sockets. No decision is made here."""
