#!/usr/bin/env bash
# An API server with its etcd and nothing else, on loopback, until it is ended: for measurements
# with more objects than any node could run. The token in FOLDER/kubeconfig gives all rights.
#
#   cluster-up/api-server.sh FOLDER PORT     etcd takes the two ports after it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster-up/common.sh
source "$here/common.sh"

[[ $# -eq 2 ]] || die "usage: cluster-up/api-server.sh FOLDER PORT"
folder=$1 port=$2

main() {
    local token etcd
    PATH=$(binary_path):$PATH
    mkdir -p "$folder"
    token=$(openssl rand -hex 16)
    echo "$token,admin,admin,system:masters" >"$folder/tokens"
    openssl genrsa -out "$folder/sa.key" 2048 2>/dev/null
    openssl rsa -in "$folder/sa.key" -pubout -out "$folder/sa.pub" 2>/dev/null
    cat >"$folder/kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: bare, cluster: {server: "https://127.0.0.1:$port", certificate-authority: "$folder/apiserver.crt"}}]
users: [{name: admin, user: {token: "$token"}}]
contexts: [{name: bare, context: {cluster: bare, user: admin}}]
current-context: bare
END
    etcd=http://127.0.0.1:$((port + 1))
    # Both end with this shell, however it ends.
    setpriv --pdeathsig KILL etcd --data-dir "$folder/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
        --listen-peer-urls "http://127.0.0.1:$((port + 2))" >"$folder/etcd.log" 2>&1 &
    # Nothing makes service accounts here, so pods must not need one.
    exec kube-apiserver --bind-address 127.0.0.1 --secure-port "$port" --cert-dir "$folder" \
        --etcd-servers "$etcd" --token-auth-file "$folder/tokens" --authorization-mode AlwaysAllow \
        --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$folder/sa.pub" --service-account-signing-key-file "$folder/sa.key" \
        --service-cluster-ip-range 10.96.0.0/16 --disable-admission-plugins ServiceAccount \
        >"$folder/kube-apiserver.log" 2>&1
}

main
