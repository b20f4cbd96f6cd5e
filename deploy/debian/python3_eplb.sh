#!/usr/bin/env bash
# Builds the Debian package python3-eplb from this tree: client/python for the system's Python, and the command eplb-convert.
# It finds libeplb.so.0 where the loader does, so that it depends on libeplb0 and on nothing that is compiled.
#   deploy/debian/python3_eplb.sh [DIRECTORY]     writes DIRECTORY/python3-eplb_VERSION_all.deb, by default into build/
# Needs dpkg-deb only. The same tree gives the same bytes: times are those of the last commit, or SOURCE_DATE_EPOCH.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
directory=${1:-$root/build}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/client/python/pyproject.toml")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
install -d -m 755 "$work/DEBIAN" "$work/usr/bin" "$work/usr/lib/python3/dist-packages/eplb" "$work/usr/share/doc/python3-eplb"
install -m 644 "$root"/client/python/eplb/*.py "$root/client/python/eplb/py.typed" "$work/usr/lib/python3/dist-packages/eplb"
install -m 644 "$root/client/python/README.md" "$work/usr/share/doc/python3-eplb/README.md"
install -m 644 "$root/LICENSE" "$work/usr/share/doc/python3-eplb/copyright"
cat > "$work/usr/bin/eplb-convert" <<'END'
#!/usr/bin/python3
import sys

from eplb.convert import main

sys.exit(main())
END
chmod 755 "$work/usr/bin/eplb-convert"
cat > "$work/DEBIAN/control" <<END
Package: python3-eplb
Version: $version
Section: python
Priority: optional
Architecture: all
Depends: python3 (>= 3.9), python3-numpy, libeplb0
Suggests: python3-torch
Maintainer: EPLB maintainers <maintainers@eplb.invalid>
Description: expert-parallel load balancer for mixture-of-experts training (Python)
 What a trainer in Python embeds on every rank: it counts the tokens of experts,
 reports them to eplbd, and moves experts with their optimizer state between
 GPUs at the boundaries of steps. Also offline placements, checkpoints in
 logical order, and the conversion of other engines' recorder dumps.
END
cat > "$work/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
[ "$1" != configure ] || ! command -v py3compile >/dev/null || py3compile -p python3-eplb
END
cat > "$work/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
! command -v py3clean >/dev/null || py3clean -p python3-eplb
END
chmod 755 "$work/DEBIAN/postinst" "$work/DEBIAN/prerm"
find "$work" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$directory"
dpkg-deb --root-owner-group -Zxz --build "$work" "$directory/python3-eplb_${version}_all.deb" >/dev/null
echo "$directory/python3-eplb_${version}_all.deb"
