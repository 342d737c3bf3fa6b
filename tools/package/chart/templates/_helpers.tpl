{{/* The beginning of all names. */}}
{{- define "ingot.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What selects the pods; it must not change between versions. */}}
{{- define "ingot.selector" -}}
app.kubernetes.io/name: ingot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ingot.labels" -}}
{{ include "ingot.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "ingot.credentials" -}}
{{- default (printf "%s-credentials" (include "ingot.name" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "ingot.certificate" -}}
{{- default (printf "%s-cert" (include "ingot.name" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{/* Names by which clients in the cluster reach the API, as JSON. */}}
{{- define "ingot.hostNames" -}}
{{- $name := include "ingot.name" . -}}
{{- $all := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace)
	(printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- concat $all .Values.api.hostNames | toJson -}}
{{- end -}}

{{/* Whether the data directory is a volume of its own, which outlives a pod. */}}
{{- define "ingot.keeps" -}}
{{- if and (ne .Values.store.kind "ephemeral") .Values.store.volume.enabled }}yes{{ end -}}
{{- end -}}

{{/* Settings that other values of the chart make, with these. */}}
{{- define "ingot.owned" -}}
data_dir: store.volume
hostname: replicas (the names of the pods are used)
store.url: store.kind and store.postgresql.url
store.password_file: store.postgresql.passwordSecret
store.key: store.postgresql.keySecret, so that it is not in a ConfigMap
store.ephemeral: store.kind
api.listen: api.port
api.host_names: api.hostNames
api.tls_cert: tls
api.tls_key: tls
api.auth: auth.enabled; there is no Keystone with this chart
api.htpasswd_file: auth
api.insecure_listen: auth.enabled
agents.listen: itself, to port 6386
peer.listen: itself, to port 6387
netboot.dhcp: provisioning.dhcp
netboot.interface: provisioning.interface
netboot.address: provisioning.address
netboot.range_start: provisioning.rangeStart
netboot.range_end: provisioning.rangeEnd
netboot.gateway: provisioning.gateway
netboot.dns: provisioning.dns
netboot.http_port: provisioning.httpPort
netboot.https_port: provisioning.httpsPort
netboot.tftp: files.loaders
netboot.loader_dir: files.loaders
netboot.ramdisk_dir: files.ramdisk
netboot.images_dir: files.images
{{- end -}}

{{/* Ends with a sentence when the values do not go together. */}}
{{- define "ingot.check" -}}
{{- $v := .Values -}}
{{- $p := $v.provisioning -}}
{{- $dhcp := $p.dhcp | default "off" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "ingot.name" .)) -}}
{{- fail (printf "nameOverride: %q is not lower-case letters, digits and hyphens with a letter first" (include "ingot.name" .)) -}}
{{- end -}}
{{- if not $v.image.repository -}}
{{- fail "image.repository: push the container image to a registry, and say where it is, such as registry.example/ingotd" -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) (ne $v.store.kind "postgresql") -}}
{{- fail (printf "replicas: %d conductors need store.kind postgresql; with %s there is one" (int $v.replicas) $v.store.kind) -}}
{{- end -}}
{{- if eq $v.store.kind "postgresql" -}}
{{- if not (regexMatch "^postgres(ql)?://" $v.store.postgresql.url) -}}
{{- fail "store.postgresql.url: say which database, such as postgres://ingot@db.example:5432/ingot?sslmode=verify-full" -}}
{{- end -}}
{{- if regexMatch "^[a-z]+://[^/@]*:[^/@]*@" $v.store.postgresql.url -}}
{{- fail "store.postgresql.url: leave the password out of the address, and name a secret with it in store.postgresql.passwordSecret" -}}
{{- end -}}
{{- if not $v.store.postgresql.keySecret -}}
{{- fail (printf "store.postgresql.keySecret: make the key that encrypts what is secret in the database, keep a copy of it, and name the secret: kubectl -n %s create secret generic ingot-store-key --from-literal=store-key=$(head -c 32 /dev/urandom | base64)" .Release.Namespace) -}}
{{- end -}}
{{- else if or $v.store.postgresql.url $v.store.postgresql.passwordSecret $v.store.postgresql.keySecret -}}
{{- fail (printf "store.postgresql: is for store.kind postgresql, not %s" $v.store.kind) -}}
{{- end -}}
{{- if and (eq $v.store.kind "sqlite") (not $v.store.volume.enabled) -}}
{{- fail "store.volume.enabled: without a volume the nodes are gone with the pod; if that is meant, set store.kind to ephemeral" -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([KMGTP]i)?$" $v.store.volume.size) -}}
{{- fail (printf "store.volume.size: %q is not a size such as 10Gi" $v.store.volume.size) -}}
{{- end -}}
{{- if not (regexMatch "^[A-Za-z0-9_.-]+$" $v.auth.username) -}}
{{- fail (printf "auth.username: %q is not letters, digits, hyphens, dots and underscores" $v.auth.username) -}}
{{- end -}}
{{- if and $v.auth.enabled (not $v.tls.enabled) (ne $v.service.type "ClusterIP") -}}
{{- fail (printf "tls.enabled: a service of type %s sends passwords over other networks: leave TLS on" $v.service.type) -}}
{{- end -}}
{{- range $name, $value := dict "address" $p.address "rangeStart" $p.rangeStart "rangeEnd" $p.rangeEnd "gateway" $p.gateway -}}
{{- if not (regexMatch "^([0-9]{1,3}([.][0-9]{1,3}){3})?$" $value) -}}
{{- fail (printf "provisioning.%s: %q is not an IPv4 address" $name $value) -}}
{{- end -}}
{{- end -}}
{{- range $p.dns -}}
{{- if not (regexMatch "^[0-9]{1,3}([.][0-9]{1,3}){3}$" .) -}}
{{- fail (printf "provisioning.dns: %q is not an IPv4 address" .) -}}
{{- end -}}
{{- end -}}
{{- if and (ne $dhcp "off") (not $p.interface) -}}
{{- fail (printf "provisioning.interface: name the host's interface of the network that mode %s answers on" $dhcp) -}}
{{- end -}}
{{- if and (eq $dhcp "server") (not (and $p.rangeStart $p.rangeEnd)) -}}
{{- fail "provisioning.rangeStart: mode server needs the first and the last address for machines, rangeStart and rangeEnd" -}}
{{- end -}}
{{- if and $p.address (gt (int $v.replicas) 1) -}}
{{- fail "provisioning.address: is that of one host; with several replicas each finds its own, so leave it empty" -}}
{{- end -}}
{{- range $line := splitList "\n" (include "ingot.owned" .) -}}
{{- $key := first (splitList ": " $line) -}}
{{- $at := $v.settings -}}
{{- range splitList "." $key -}}
{{- $at = and (kindIs "map" $at) (hasKey $at .) | ternary (get $at .) nil -}}
{{- end -}}
{{- if not (kindIs "invalid" $at) -}}
{{- fail (printf "settings.%s: is set by %s" $key (join ": " (rest (splitList ": " $line)))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The configuration of ingotd. */}}
{{- define "ingot.config" -}}
{{- $v := .Values -}}
{{- $paths := include "ingot.paths" . | fromJson -}}
{{- $p := $v.provisioning -}}
{{- $store := dict "url" "sqlite:" -}}
{{- if eq $v.store.kind "postgresql" -}}
{{- $_ := set $store "url" $v.store.postgresql.url -}}
{{- if $v.store.postgresql.passwordSecret -}}
{{- $_ := set $store "password_file" "/etc/ingot/database/password" -}}
{{- end -}}
{{- else if eq $v.store.kind "ephemeral" -}}
{{- $_ := set $store "ephemeral" true -}}
{{- end -}}
{{- $api := dict "listen" (printf ":%d" (int $v.api.port)) "host_names" (include "ingot.hostNames" . | fromJsonArray) -}}
{{- if $v.auth.enabled -}}
{{- $_ := set $api "auth" "http_basic" -}}
{{- $_ := set $api "htpasswd_file" "/etc/ingot/credentials/htpasswd" -}}
{{- else -}}
{{- $_ := set $api "auth" "none" -}}
{{- $_ := set $api "insecure_listen" true -}}
{{- end -}}
{{- if $v.tls.enabled -}}
{{- $_ := set $api "tls_cert" "/etc/ingot/tls/tls.crt" -}}
{{- $_ := set $api "tls_key" "/etc/ingot/tls/tls.key" -}}
{{- end -}}
{{- $netboot := dict "dhcp" ($p.dhcp | default "off") "http_port" (int $p.httpPort) "https_port" (int $p.httpsPort)
	"tftp" (hasKey $paths "loaders") -}}
{{- range $to, $value := dict "interface" $p.interface "address" $p.address "range_start" $p.rangeStart
	"range_end" $p.rangeEnd "gateway" $p.gateway "dns" $p.dns -}}
{{- if $value -}}
{{- $_ := set $netboot $to $value -}}
{{- end -}}
{{- end -}}
{{- range $name, $to := dict "loaders" "loader_dir" "ramdisk" "ramdisk_dir" "images" "images_dir" -}}
{{- $_ := set $netboot $to (get $paths $name) -}}
{{- end -}}
{{- $c := dict "data_dir" "/var/lib/ingot" "store" $store "api" $api "netboot" $netboot -}}
{{- mustMergeOverwrite $c (deepCopy $v.settings) | toYaml -}}
{{- end -}}

{{/* How the kubelet asks for a path of the API. Arguments: the root, the path. */}}
{{- define "ingot.probe" -}}
{{- $root := first . -}}
httpGet:
  path: {{ last . }}
  port: api
  scheme: {{ $root.Values.tls.enabled | ternary "HTTPS" "HTTP" }}
{{- end -}}

{{/* Where files are in the pod, by their names in the values, without those that are left out; as JSON. */}}
{{- define "ingot.paths" -}}
{{- $paths := dict -}}
{{- range $name, $path := dict "ramdisk" "/usr/lib/ingot/ramdisk" "loaders" "/usr/lib/ipxe" "authorities" "/etc/ssl/certs"
	"images" "/srv/images" -}}
{{- if kindIs "map" (get $.Values.files $name) -}}
{{- $_ := set $paths $name $path -}}
{{- end -}}
{{- end -}}
{{- $paths | toJson -}}
{{- end -}}
