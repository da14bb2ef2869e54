# Sourced. On Linux, puts the system's OpenBLAS in front of the unoptimised BLAS inside MLX's wheel.
find_openblas() {
    local lib
    for lib in "/usr/lib/$(uname -m)-linux-gnu/openblas-pthread/libopenblas.so.0" \
        /usr/lib64/libopenblasp.so.0 /usr/lib64/libopenblas.so.0 /usr/lib/libopenblas.so.0; do
        if [ -e "$lib" ]; then
            echo "$lib"
            return
        fi
    done
}

use_openblas() {
    [ "$(uname)" = Linux ] || return 0
    local lib
    lib=$(find_openblas)
    if [ -n "$lib" ]; then export LD_PRELOAD="$lib${LD_PRELOAD:+:$LD_PRELOAD}"; fi
}
