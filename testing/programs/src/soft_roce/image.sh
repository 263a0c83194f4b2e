#!/bin/sh
# Builds the guest's kernel (vmlinuz) and its root file system (initrd.gz) in the current directory: Debian's kernel, downloaded
# but not installed, busybox, this machine's RDMA programs, whose names are the arguments, and our own, operations.c and probe.c.
set -eu

package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)/\1/p' | head -n 1)
version=${package#linux-image-}
if [ ! -e "kernel/boot/vmlinuz-$version" ]; then
    rm -rf kernel && mkdir kernel
    apt-get download -q "$package"
    dpkg-deb -x "$package"_*.deb kernel
    rm "$package"_*.deb
    depmod -b kernel "$version"
fi
cp "kernel/boot/vmlinuz-$version" vmlinuz

rm -rf root
mkdir -p root/bin root/dev root/etc root/lib64 root/modules root/proc root/sys root/tmp
cp "$(command -v busybox)" root/bin/busybox
for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln -s busybox "root/bin/$applet"
done

# Copies a file, and the libraries that it needs.
copy() {
    for file in "$1" $(ldd "$1" 2>/dev/null | grep -o '/[^ )]*'); do
        [ -e "root$file" ] && continue
        mkdir -p "root${file%/*}"
        cp -L "$file" "root$file"
    done
}
for program in ip rdma ss "$@"; do
    copy "$(command -v "$program")"
done
cc -O2 -Wall -Werror -o operations operations.c -libverbs
cp operations root/bin/
cc -O2 -Wall -Werror -o root/bin/probe probe.c -lrdmacm -libverbs -lpthread
# busybox's shell prefers its own program of that name, which does not know `nodad`.
ln -s "$(command -v ip)" root/bin/debian-ip
copy /lib64/ld-linux-x86-64.so.2
# pthread_exit loads it.
copy /lib/x86_64-linux-gnu/libgcc_s.so.1
copy /etc/libibverbs.d/rxe.driver
for provider in /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so; do
    copy "$provider"
done
echo 'root:x:0:0:root:/:/bin/sh' >root/etc/passwd
echo 'root:x:0:' >root/etc/group
echo '127.0.0.1 localhost' >root/etc/hosts
echo 'hosts: files' >root/etc/nsswitch.conf

for module in virtio_pci virtio_net crc32_generic crc32_pclmul ib_uverbs rdma_ucm rdma_rxe; do
    modprobe -d "$PWD/kernel" -S "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    cp "$file" root/modules/
    basename "$file" >>root/modules/order
done
cp init.sh root/init
chmod 755 root/init
(cd root && find . | cpio --quiet -o -H newc | gzip -1) >initrd.gz
