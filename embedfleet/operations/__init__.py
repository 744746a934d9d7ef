"""Operations that pyinfra lacks: batches of files, accounts and directories, certificates, and embedfleetctl's jobs."""
