# Not those of git-svn, git-p4 and git-cvs. A failed program is named `t0001-init.sh (Wstat: ...)`.
dir=$PWD
cd "$1/t"
shift
# They would stay: inotify does not tell them that their directories are gone.
trap 'pgrep -f "^gpg-agent --homedir $dir/" | xargs -r kill || true' EXIT
# shellcheck disable=SC2086
prove -j"$(nproc)" --exec sh ${*:-t[0-8]*.sh} :: --root="$dir" | sed -n 's/^\(t[0-9][^ ]*\) *(Wstat:.*/\1/p'
