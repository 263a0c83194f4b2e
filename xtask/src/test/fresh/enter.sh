# enter.sh ROOT BINDS PROGRAM [ARGUMENT...]: runs a program with ROOT as its file system.
# Runs in its own mount namespace (`unshare --mount`), so every mount here ends with it.
# The file BINDS has one line for each path of this machine: FROM, a tab, the place in ROOT. They are mounted read-only.
set -eu
root=$1 binds=$2
shift 2
tab=$(printf '\t')
while IFS=$tab read -r from to; do
    if [ -d "$from" ]; then
        mkdir -p "$root$to"
    else
        mkdir -p "$(dirname "$root$to")"
        # Do not follow a symbolic link of the root, which would lead out of it.
        rm -f "$root$to"
        : > "$root$to"
    fi
    mount -o bind,ro "$from" "$root$to"
done < "$binds"
# These mounts come last, because the steps above must not create or remove anything in them.
for system in proc sys dev; do
    mount --rbind "/$system" "$root/$system"
done
exec chroot "$root" "$@"
