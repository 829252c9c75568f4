#!/usr/bin/env bash
# Ends what slurm_up.sh started below $SLURM_TEST_DIR: its jobs, then its daemons by their pid files, names checked.
S=${SLURM_TEST_DIR:?the directory given to slurm_up.sh}
export SLURM_CONF=$S/slurm.conf
alive() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

timeout 5 scancel --me --quiet
for _ in $(seq 150); do
  [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break
  sleep 0.1
done
for daemon in slurmd:slurmd.pid slurmctld:slurmctld.pid slurmdbd:slurmdbd.pid mariadbd:mariadbd.pid munged:munge/munged.pid; do
  name=${daemon%%:*}
  pid=$(cat "$S/${daemon#*:}" 2>/dev/null) || continue
  alive "$pid" "$name" || continue
  kill "$pid"
  for _ in $(seq 100); do
    alive "$pid" "$name" || continue 2
    sleep 0.1
  done
  echo "$name ($pid) had to be killed" >&2
  kill -9 "$pid"
done
exit 0
