# shellcheck shell=bash
# Run by root in a Debian 12 that systemd has started, with the packages in /srv/packages and newer ones in /srv/newer, no network.
# bash -euxo pipefail; a line that begins with "== " is what the caller shows.

fail() { echo "== FAILED: $*"; exit 1; }
expect_gone() { for path; do [ ! -e "$path" ] || fail "$path is there"; done; }
expect_files() { for path; do [ -f "$path" ] || fail "$path is not there"; done; }
wait_for() {  # SECONDS COMMAND..
  local left=$(($1 * 5)); shift
  until "$@" >/dev/null 2>&1; do ((left-- > 0)) || fail "$*: not in time"; sleep 0.2; done
}
pid_of_service() { systemctl show --property MainPID --value eplbd; }

# Nothing runs without a request.
! systemctl --quiet is-enabled eplbd || fail "the service is enabled"
! systemctl --quiet is-active eplbd || fail "the service runs"
echo "== installed, neither enabled nor started"

@TYPED@
[ "$(stat -c %U:%a /var/lib/eplb)" = eplb:750 ]
[ "$(stat -c %U:%G:%a /run/eplb/eplbd.sock)" = eplb:eplb:660 ]
expect_files /var/lib/eplb/eplbd.db
eplbctl status | grep -F "term 1, ready"
! runuser -u nobody -- eplbctl --endpoint unix:/run/eplb/eplbd.sock status 2>/dev/null || fail "anybody may use the socket"
[ "$(ps -o user= -p "$(pid_of_service)")" = eplb ]
grep -E '^CapEff:\s0+$' "/proc/$(pid_of_service)/status"
grep -E '^Seccomp:\s2$' "/proc/$(pid_of_service)/status"
echo "== the service runs as eplb under its hardening"

# The core stops turning: systemd starts another.
mkdir -p /run/systemd/system/eplbd.service.d
printf '[Service]\nWatchdogSec=3s\n' > /run/systemd/system/eplbd.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart eplbd
stopped=$(pid_of_service)
kill -STOP "$stopped"
another() { [ "$(pid_of_service)" != "$stopped" ] && [ "$(pid_of_service)" != 0 ] && eplbctl status; }
wait_for 40 another
rm -r /run/systemd/system/eplbd.service.d
systemctl daemon-reload
systemctl restart eplbd
echo "== the watchdog restarts a daemon that hangs"

# Programs that are compiled against libeplb-dev.
mkdir /srv/cmake /srv/pkgconfig
cmake -S /usr/share/doc/eplb/deploy/examples/c -B /srv/cmake >/dev/null
cmake --build /srv/cmake >/dev/null
# shellcheck disable=SC2046
cc -std=c99 -o /srv/pkgconfig/trainer /usr/share/doc/eplb/deploy/examples/c/trainer.c $(pkg-config --cflags --libs eplb)
[ "$(pkg-config --modversion eplb)" = "$(eplbctl --version | cut -d' ' -f2)" ]
run_job() {  # PROGRAM WORLD..
  local rank ranks=()
  for rank in 0 1; do "$@" "$rank" 2 unix:/run/eplb/eplbd.sock & ranks+=($!); done
  for rank in "${ranks[@]}"; do wait "$rank" || fail "$1: a rank ended with $?"; done
}
EPLB_LAUNCH_ID=1 run_job /srv/cmake/trainer > /srv/job.log
grep -E '^after step [0-9]+: version [1-9]' /srv/job.log || fail "no switch in the job of C"
EPLB_LAUNCH_ID=2 run_job /srv/pkgconfig/trainer > /srv/job.log
echo "== find_package and pkg-config: C ranks trained, experts moved"
EPLB_LAUNCH_ID=3 run_job /usr/bin/python3 /srv/packages/python_rank.py > /srv/job.log
grep -E '^rank 0 switched to version [1-9]' /srv/job.log || fail "no switch in the job of Python"
eplb-convert --help >/dev/null
echo "== python3-eplb: ranks trained, experts moved"
eplbctl status
eplbctl get events | grep -F "uid 0" || true

# Pages, completions, configuration, dashboard.
[ "$(man -w eplbd)" = /usr/share/man/man8/eplbd.8.gz ]
man eplbctl | grep -F "eplbctl plan" >/dev/null
# shellcheck disable=SC1091
(set +u; . /usr/share/bash-completion/bash_completion; _completion_loader eplbctl || true; complete -p eplbctl)
expect_files /usr/share/zsh/vendor-completions/_eplbctl /usr/share/fish/vendor_completions.d/eplbctl.fish
expect_files /usr/share/eplb/prometheus/alerts.yml /usr/share/eplb/grafana/dashboard.json
for package in eplbd eplbctl libeplb0 libeplb-dev python3-eplb eplb-doc; do
  expect_files "/usr/share/doc/$package/copyright" "/usr/share/doc/$package/changelog.Debian.gz"
done
echo "== pages, completions, alerts and licences are there"

# An upgrade keeps configuration and store, restarts what ran, and training goes on.
sed -i 's/^unix_access = "group".*/unix_access = "group"  # changed here/' /etc/eplb/eplbd.toml
EPLB_LAUNCH_ID=4 run_job /srv/cmake/trainer > /srv/job.log &
job=$!
before=$(pid_of_service)
dpkg -i /srv/newer/*.deb
wait_for 20 eplbctl status
[ "$(pid_of_service)" != "$before" ] || fail "the upgrade did not restart the service"
[ "$(dpkg-query -W -f '${Version}' eplbd)" != "$(dpkg-deb -f /srv/packages/eplbd_*.deb Version)" ]
grep -F "# changed here" /etc/eplb/eplbd.toml
wait "$job" || fail "training did not outlive the upgrade"
eplbctl get jobs | grep -F c-example
systemctl --quiet is-enabled eplbd
echo "== upgraded: configuration, store and training go on"

# A service that does not run is not started by an upgrade.
systemctl stop eplbd
dpkg -i /srv/newer/eplbd_*.deb
! systemctl --quiet is-active eplbd || fail "an upgrade started the service"
systemctl start eplbd

apt-get remove -y -qq eplbd
! systemctl --quiet is-active eplbd || fail "the service runs after it was removed"
expect_files /var/lib/eplb/eplbd.db /etc/eplb/eplbd.toml
expect_gone /usr/bin/eplbd /usr/lib/systemd/system/eplbd.service /etc/systemd/system/multi-user.target.wants/eplbd.service
echo "== removed: configuration and store are there"
apt-get purge -y -qq eplbd eplbctl libeplb-dev libeplb0 python3-eplb eplb-doc
expect_gone /var/lib/eplb /run/eplb /etc/eplb /usr/share/doc/eplb /usr/share/eplb /usr/lib/python3/dist-packages/eplb /usr/bin/eplbctl
ldconfig -p | grep -F libeplb && fail "the loader still has the library"
echo "== purged"
