#!/usr/bin/env bash
# A real Slurm of one node, as root and without systemd, all of it below $SLURM_TEST_DIR.
# SLURM_TEST_PORT: the first of three ports. SLURM_TEST_DBD=0: without accounting (no sacct). slurm_down.sh ends it.
set -euo pipefail
S=${SLURM_TEST_DIR:?a private directory}
PORT=${SLURM_TEST_PORT:-16817}
DBD=${SLURM_TEST_DBD:-1}
HOST=$(hostname -s)
CPUS=${SLURM_TEST_CPUS:-4}   # what Slurm may hand out; more than there are is fine, nothing binds to them
MEM=$(($(awk '/MemTotal/{print $2}' /proc/meminfo) / 1024 - 512))
export SLURM_CONF=$S/slurm.conf
umask 022

until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" >"$S/log/wait.log" 2>&1; do
    [ $SECONDS -lt $end ] || { echo "gave up waiting for: $*" >&2; tail -5 "$S"/log/*.log >&2; return 1; }
    sleep 0.05
  done
}

mkdir -p "$S"/{state,spool,log,munge}
chmod 0711 "$S/munge"
(umask 077 && head -c 1024 /dev/urandom >"$S/munge/munge.key")

accounting=AccountingStorageType=accounting_storage/none
[ "$DBD" = 0 ] || accounting="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 2))
AccountingStoragePass=$S/munge/munge.sock"

# MaxArraySize is small for the test of splitting; KillWait is the time from SIGTERM to SIGKILL.
# cred_expire (5 is the least) and requeue_delay: how soon a requeued job may start again.
cat >"$SLURM_CONF" <<CONF
ClusterName=ptbtest
SlurmctldHost=$HOST(127.0.0.1)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$S/munge/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$PORT
SlurmdPort=$((PORT + 1))
SlurmctldPidFile=$S/slurmctld.pid
SlurmdPidFile=$S/slurmd.pid
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/spool
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
$accounting
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,defer=0,requeue_delay=0
MaxArraySize=${SLURM_TEST_MAX_ARRAY:-1001}
ReturnToService=2
KillWait=5
MinJobAge=${SLURM_TEST_MIN_JOB_AGE:-300}
SlurmdTimeout=300
InactiveLimit=0
JobRequeue=1
SlurmdParameters=config_overrides
NodeName=$HOST NodeAddr=127.0.0.1 CPUs=$CPUS RealMemory=$MEM State=UNKNOWN
PartitionName=main Nodes=$HOST Default=YES MaxTime=INFINITE State=UP
CONF

PATH=$PATH:/usr/sbin
munged --force --key-file="$S/munge/munge.key" --socket="$S/munge/munge.sock" --pid-file="$S/munge/munged.pid" \
  --log-file="$S/munge/munged.log" --seed-file="$S/munge/munged.seed" --num-threads=2

if [ "$DBD" != 0 ]; then
  sql() { mariadb --no-defaults -uroot -S "$S/db.sock" -e "$1"; }
  mariadb-install-db --no-defaults --datadir="$S/db" --user=root --auth-root-authentication-method=normal \
    --skip-test-db >"$S/log/dbinit.log" 2>&1
  mariadbd --no-defaults --user=root --datadir="$S/db" --socket="$S/db.sock" --pid-file="$S/mariadbd.pid" \
    --skip-networking --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 \
    >"$S/log/mariadbd.log" 2>&1 </dev/null &
  until_true 30 sql 'select 1'
  sql 'create database slurm_acct_db'
  (umask 077 && cat >"$S/slurmdbd.conf") <<CONF
AuthType=auth/munge
AuthInfo=socket=$S/munge/munge.sock
DbdHost=$HOST
DbdAddr=127.0.0.1
DbdPort=$((PORT + 2))
SlurmUser=root
LogFile=$S/log/slurmdbd.log
PidFile=$S/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
CONF
  MYSQL_UNIX_PORT="$S/db.sock" SLURM_CONF="$S/slurmdbd.conf" slurmdbd >"$S/log/slurmdbd.out" 2>&1
  until_true 30 timeout 5 sacctmgr -n list cluster
  timeout 20 sacctmgr -i add cluster ptbtest >"$S/log/sacctmgr.log" 2>&1
fi

slurmctld -c
slurmd -c -N "$HOST"
idle() { [ "$(timeout 2 sinfo -h -o %T)" = idle ]; }
until_true 30 idle
