"""The only writer: creates, server-side applies, patches and deletes, with preconditions."""
