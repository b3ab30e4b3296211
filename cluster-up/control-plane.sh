#!/usr/bin/env bash
# The control plane: etcd, API server, controller manager and scheduler, each started again when it
# ends. It is the first process of its own process id namespace; started by up.sh, not by hand.
#
# Further flags come from KUBE_APISERVER_ARGS, KUBE_CONTROLLER_MANAGER_ARGS and
# KUBE_SCHEDULER_ARGS, as words.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

pki=$run/pki

# The state of a test cluster need not survive a power failure, so no fsync.
etcd_command=(
    etcd --name barevirt --data-dir "$run/etcd" --unsafe-no-fsync --logger zap --log-level warn
    --listen-client-urls https://127.0.0.1:2379 --advertise-client-urls https://127.0.0.1:2379
    --listen-peer-urls https://127.0.0.1:2380 --initial-advertise-peer-urls https://127.0.0.1:2380
    --initial-cluster barevirt=https://127.0.0.1:2380
    --client-cert-auth --trusted-ca-file "$pki/etcd/ca.crt"
    --cert-file "$pki/etcd/server.crt" --key-file "$pki/etcd/server.key"
    --peer-client-cert-auth --peer-trusted-ca-file "$pki/etcd/ca.crt"
    --peer-cert-file "$pki/etcd/peer.crt" --peer-key-file "$pki/etcd/peer.key"
)

# Aggregator routing sends webhooks and aggregated APIs to pod addresses, for which this machine has
# routes, rather than to service addresses, for which it has none.
# shellcheck disable=SC2054 # the comma is the API server's
api_server_command=(
    kube-apiserver --advertise-address "$control_plane_ipv4" --bind-address "$control_plane_ipv4"
    --secure-port 6443 --allow-privileged=true --authorization-mode Node,RBAC
    --enable-admission-plugins NodeRestriction --feature-gates ImageVolume=true
    --service-cluster-ip-range "$service_ranges" --enable-aggregator-routing=true
    --client-ca-file "$pki/ca.crt"
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key"
    --kubelet-client-certificate "$pki/apiserver-kubelet-client.crt"
    --kubelet-client-key "$pki/apiserver-kubelet-client.key"
    --kubelet-preferred-address-types InternalIP
    --etcd-servers https://127.0.0.1:2379 --etcd-cafile "$pki/etcd/ca.crt"
    --etcd-certfile "$pki/apiserver-etcd-client.crt" --etcd-keyfile "$pki/apiserver-etcd-client.key"
    --service-account-issuer https://kubernetes.default.svc.cluster.local
    --service-account-key-file "$pki/sa.pub" --service-account-signing-key-file "$pki/sa.key"
    --requestheader-client-ca-file "$pki/front-proxy-ca.crt"
    --requestheader-allowed-names front-proxy-client
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group
    --requestheader-extra-headers-prefix X-Remote-Extra-
    --proxy-client-cert-file "$pki/front-proxy-client.crt"
    --proxy-client-key-file "$pki/front-proxy-client.key"
    --audit-policy-file "$here/audit-policy.yaml" --audit-log-path "$run/logs/audit.log"
    --audit-log-maxsize 200 --audit-log-maxbackup 2
)

# A lost node is noticed in 20 s rather than 50, since tests wait for it.
controller_manager_command=(
    kube-controller-manager --kubeconfig "$run/controller-manager.conf"
    --authentication-kubeconfig "$run/controller-manager.conf"
    --authorization-kubeconfig "$run/controller-manager.conf"
    --bind-address 127.0.0.1 --leader-elect=false --controllers '*,bootstrapsigner,tokencleaner'
    --cluster-cidr "$pod_ranges" --service-cluster-ip-range "$service_ranges" --allocate-node-cidrs=false
    --client-ca-file "$pki/ca.crt" --root-ca-file "$pki/ca.crt"
    --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
    --requestheader-client-ca-file "$pki/front-proxy-ca.crt"
    --service-account-private-key-file "$pki/sa.key" --use-service-account-credentials=true
    --node-monitor-period 2s --node-monitor-grace-period 20s
)

scheduler_command=(
    kube-scheduler --kubeconfig "$run/scheduler.conf"
    --authentication-kubeconfig "$run/scheduler.conf" --authorization-kubeconfig "$run/scheduler.conf"
    --bind-address 127.0.0.1 --leader-elect=false
)

ready() { kubectl get --raw /readyz; }

main() {
    mount -t proc proc /proc
    # shellcheck disable=SC2206 # further flags are words
    api_server_command+=(${KUBE_APISERVER_ARGS:-})
    # shellcheck disable=SC2206
    controller_manager_command+=(${KUBE_CONTROLLER_MANAGER_ARGS:-})
    # shellcheck disable=SC2206
    scheduler_command+=(${KUBE_SCHEDULER_ARGS:-})
    PATH=$(binary_path):$PATH
    supervise "$run/logs/etcd.log" "${etcd_command[@]}" &
    supervise "$run/logs/kube-apiserver.log" "${api_server_command[@]}" &
    # Before that the roles that both need are missing, and they would exit.
    wait_for 120 "API server" ready
    supervise "$run/logs/kube-controller-manager.log" "${controller_manager_command[@]}" &
    supervise "$run/logs/kube-scheduler.log" "${scheduler_command[@]}" &
    # Waits for ever, and reaps the namespace's orphaned processes.
    wait
}

main
