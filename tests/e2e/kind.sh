#!/usr/bin/env bash
# A kind cluster with Trainmaster installed, and the cluster tests against it. Needs Docker, kind and kubectl.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=${KIND_CLUSTER:-trainmaster}
version=${TRAINMASTER_VERSION:-0.1.0}
kubeconfig=${TRAINMASTER_TEST_KUBECONFIG:-$PWD/.trainmaster/kind.kubeconfig}
images=(ghcr.io/trainmaster/{operator,trainer,console}":$version")

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || {
      echo "kind.sh: $tool is needed and isn't on the PATH" >&2
      exit 2
    }
  done
}

up() {
  need docker kind kubectl
  mkdir -p "$(dirname "$kubeconfig")"
  kind get clusters | grep -qx "$name" || kind create cluster --name "$name" --kubeconfig "$kubeconfig" --wait 120s
  docker build -t "${images[0]}" -f images/operator/Dockerfile .
  docker build -t "${images[1]}" -f images/trainer/Dockerfile .
  docker build -t "${images[2]}" -f images/console/Dockerfile .
  kind load docker-image --name "$name" "${images[@]}"
  kubectl --kubeconfig "$kubeconfig" apply --server-side -k manifests
  kubectl --kubeconfig "$kubeconfig" -n trainmaster-system rollout status deployment/trainmaster --timeout=180s
}

run_tests() {
  need kubectl
  [ -f "$kubeconfig" ] || {
    echo "kind.sh: $kubeconfig doesn't exist: run 'make kind-up' first" >&2
    exit 2
  }
  # First the operator that is installed runs the example; then it makes room for the operators that the tests start.
  kubectl --kubeconfig "$kubeconfig" apply -f manifests/examples/reviews.yaml
  kubectl --kubeconfig "$kubeconfig" wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=900s dtj/reviews
  kubectl --kubeconfig "$kubeconfig" delete -f manifests/examples/reviews.yaml
  kubectl --kubeconfig "$kubeconfig" -n trainmaster-system scale deployment/trainmaster --replicas=0
  TRAINMASTER_TEST_KUBECONFIG="$kubeconfig" "${VENV:-.venv}/bin/python" -m pytest -m "not slow" tests/cluster local/tests/cluster
}

down() {
  need kind
  kind delete cluster --name "$name"
  rm -f "$kubeconfig"
}

case "${1:-}" in
  up) up ;;
  test) run_tests ;;
  down) down ;;
  *)
    echo "usage: $0 up|test|down" >&2
    exit 64
    ;;
esac
