#!/usr/bin/env bash
# Checks the files of deploy/ that no test of the suite reads: the unit, the Kubernetes manifests, compose.yaml, and the files of Envoy and
# Prometheus. Installs the validators. The tests `deploy::` of the suite check the settings in them.
#
#   scripts/check-deploy.sh            checks
#   scripts/check-deploy.sh --write    writes the PrometheusRule again, from deploy/prometheus/alerts.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh

rule=deploy/kubernetes/monitoring/prometheusrule.yaml
prometheus_rule() {
    echo "# Generated from deploy/prometheus/alerts.yaml by scripts/check-deploy.sh --write."
    printf 'apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: slidegate\n  labels: { app.kubernetes.io/name: slidegate }\nspec:\n'
    sed -n '/^groups:/,$p' deploy/prometheus/alerts.yaml | sed 's/^\(.\)/  \1/'
}
case ${1:-} in
--write) prometheus_rule >$rule ;;
"") prometheus_rule | diff $rule - || { echo "$rule is not up to date: scripts/check-deploy.sh --write"; exit 1; } ;;
*) sed -n '5,6s/^# \{0,3\}//p' "$0" && exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
need python3 python3
need systemd-analyze systemd
tools=$PWD/target/tools/deploy
if [ ! -x "$tools/bin/check-jsonschema" ]; then
    echo "installing kubernetes-validate and check-jsonschema into target/tools"
    python3 -m venv "$tools" >/dev/null 2>&1 || { install python3-venv; python3 -m venv "$tools"; }
    "$tools/bin/python" -m pip install -q kubernetes-validate==1.37.0 check-jsonschema==0.39.0
fi

# The systemd unit. It is checked without an installed program, and its security exposure must be at most 2.0.
sed 's#/usr/bin/slidegate#/bin/true#' deploy/systemd/slidegate.service >"$work/slidegate.service"
systemd-analyze verify --man=no "$work/slidegate.service"
systemd-analyze security --offline=true --no-pager --threshold=20 "$work/slidegate.service" >"$work/security" || { cat "$work/security"; exit 1; }
tail -1 "$work/security"

# Every resource alone, and every overlay as kustomize builds it.
validate() {
    "$tools/bin/kubernetes-validate" --strict --quiet --no-warn "$@"
}
mapfile -t resources < <(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml ! -path '*/monitoring/*' | sort)
for file in "${resources[@]}"; do
    # A patch is not a whole resource.
    grep -q "path: $(basename "$file")$" "$(dirname "$file")/kustomization.yaml" || validate "$file"
done
if command -v kubectl >/dev/null; then
    for folder in deploy/kubernetes/overlays/*; do
        kubectl kustomize "$folder" >"$work/$(basename "$folder").yaml"
        validate "$work/$(basename "$folder").yaml"
    done
    kubectl kustomize deploy/kubernetes/monitoring >/dev/null
else
    echo "kubectl is not installed: the overlays were not built"
fi

"$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml

# Files of other programs, if the tests have installed those.
if [ -x target/tools/bin/envoy ]; then
    "$tools/bin/python" - "$work" <<'P'
import sys, yaml
manifest = yaml.safe_load(open("deploy/kubernetes/overlays/envoy-sidecar/envoy-configmap.yaml"))
open(sys.argv[1] + "/envoy.yaml", "w").write(manifest["data"]["envoy.yaml"])
P
    target/tools/bin/envoy --mode validate --log-level error -c "$work/envoy.yaml"
fi
if command -v promtool >/dev/null; then
    cp deploy/compose/prometheus.yml deploy/prometheus/alerts.yaml "$work"
    promtool check config "$work/prometheus.yml" >/dev/null
fi
for file in scripts/*.sh; do bash -n "$file"; done
for file in deploy/docker/rootfs.sh deploy/debian/p*; do sh -n "$file"; done
echo "deploy/: ok"
