#!/usr/bin/env bash
# Makes the file system of an image: programs, the shared libraries that they load, an account, and folders for the store and the
# socket. Nothing else: no shell, no package manager.
#   deploy/container/rootfs.sh DIRECTORY UID PROGRAM...
# DIRECTORY must not exist. Only root can give the folders to UID; another user keeps them.
set -euo pipefail

[ $# -ge 3 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$1 account=$2
shift 2
[ ! -e "$root" ] || { echo "rootfs: $root exists, expected a new folder" >&2; exit 2; }
[[ $account =~ ^[1-9][0-9]{0,8}$ ]] || { echo "rootfs: UID is \"$account\", expected a number above 0" >&2; exit 2; }

install -d -m 755 "$root" "$root/usr/bin" "$root/etc/eplb" "$root/var/lib" "$root/run"
install -d -m 1777 "$root/tmp"
install -d -m 750 "$root/var/lib/eplb"
install -d -m 755 "$root/run/eplb"
if [ "$(id -u)" -eq 0 ]; then
  chown "$account:$account" "$root/var/lib/eplb" "$root/run/eplb"
fi
printf 'root:x:0:0::/:/nonexistent\neplb:x:%s:%s::/var/lib/eplb:/nonexistent\n' "$account" "$account" >"$root/etc/passwd"
printf 'root:x:0:\neplb:x:%s:\n' "$account" >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"

for program in "$@"; do
  [ -x "$program" ] || { echo "rootfs: $program is no program" >&2; exit 2; }
  install -m 755 "$program" "$root/usr/bin/"
  # Lines of ldd: "name => /path (address)", "/path of the loader (address)", or "name => not found".
  while read -r name arrow path _; do
    [ "$arrow" = "=>" ] || path=$name
    [ "$path" != not ] || { echo "rootfs: $program needs $name, which is not installed" >&2; exit 1; }
    [[ $path == /* ]] || continue
    # Under the name that the loader asks for, with the content of the link's target.
    [ -e "$root$path" ] || install -D -m 755 "$path" "$root$path"
  done < <(ldd "$program")
done
