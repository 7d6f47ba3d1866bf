# What ./run and ./test need of the machine. Sourced, not run; asks nothing, and is quick when nothing is
# missing. Debian and Ubuntu.

export PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin"
export DEBIAN_FRONTEND=noninteractive

# The oldest Rust that builds this: rust-version in Cargo.toml.
RUST_MINOR=85

note() { printf '== %s\n' "$*" >&2; }
fail() { printf '%s: %s\n' "$0" "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else return 1
    fi
}

# need PROGRAM:PACKAGE...: installs the packages whose program is not there.
need() {
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null || { note "not found: ${missing[*]} (no apt-get here to install them with)"; return 1; }
    note "installing ${missing[*]}"
    as_root apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && return 0
    as_root apt-get update -q >/dev/null 2>&1
    as_root apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
}

rust_is_recent() {
    local minor
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge "$RUST_MINOR" ] && command -v cargo >/dev/null
}

debian_rust_is_recent() {
    local minor
    minor=$(apt-cache policy rustc 2>/dev/null | sed -n 's/^ *Candidate: 1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge "$RUST_MINOR" ]
}

need_rust() {
    rust_is_recent && return 0
    if debian_rust_is_recent && need rustc:rustc cargo:cargo && rust_is_recent; then return 0; fi
    need curl:curl || fail "curl is needed to fetch Rust"
    note "installing Rust by rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y -q --profile minimal >&2
    PATH="$HOME/.cargo/bin:$PATH"
    rust_is_recent || fail "Rust 1.$RUST_MINOR or newer is needed, see https://rustup.rs"
}

need_fuse() {
    [ -e /dev/fuse ] || as_root modprobe fuse 2>/dev/null || true
}
