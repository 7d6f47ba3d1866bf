shift
TMPDIR=$PWD python3 -m test --tempdir "$PWD" -j"$(nproc)" --timeout 600 ${*:-test_dbm test_dbm_dumb test_fcntl test_file test_filecmp \
    test_fileinput test_fileio test_genericpath test_glob test_io test_largefile test_mailbox test_mmap test_multiprocessing_fork \
    test_os test_pathlib test_posix test_posixpath test_shelve test_shutil test_sqlite3 test_subprocess test_tarfile test_tempfile \
    test_venv test_zipfile} | tee report | sed -n '/ tests\? failed:$/,/^$/s/^ \+//p' | tr ' ' '\n'
grep -q '^Total duration\|^Tests result' report
