{{/* The name of the release's objects. */}}
{{- define "netpolicy.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "netpolicy.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- define "netpolicy.selector" -}}
app.kubernetes.io/name: netpolicy
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "netpolicy.labels" -}}
{{ include "netpolicy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The groups of nodes, as JSON: one without a name if the values have none. */}}
{{- define "netpolicy.groups" -}}
{{- $all := .Values.groups | default (list (dict "name" "" "nodeSelector" dict "policies" dict)) }}
{{- $seen := list }}
{{- $selectors := list }}
{{- range $all }}
{{- if has .name $seen }}{{ fail (printf "groups: two are called %q" .name) }}{{ end }}
{{- $selector := .nodeSelector | default dict | toJson }}
{{- if has $selector $selectors }}{{ fail (printf "groups: %q has the nodeSelector of another group: a node may belong to one only" .name) }}{{ end }}
{{- $seen = append $seen .name }}
{{- $selectors = append $selectors $selector }}
{{- end }}
{{- $all | toJson }}
{{- end }}

{{/* What both containers have: no right but its capabilities, and no way to gain one. */}}
{{- define "netpolicy.security" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsUser: 0
runAsGroup: 0
runAsNonRoot: false
appArmorProfile: {{ toJson .Values.security.appArmorProfile }}
seccompProfile: {{ toJson .Values.security.seccompProfile }}
{{- with .Values.security.seLinuxOptions }}
seLinuxOptions: {{ toJson . }}
{{- end }}
{{- end }}
