{{- define "rialto.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rialto.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rialto.labels" -}}
{{ include "rialto.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "rialto.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "rialto.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "rialto.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* The configuration, with what the chart decides itself. */}}
{{- define "rialto.config" -}}
{{- if or (hasKey .Values.config "listen") (hasKey .Values.config "cluster") -}}
{{- fail "config must not have `listen` or `cluster`: the chart sets them, see `fleet` in values.yaml" -}}
{{- end -}}
{{- $config := merge (dict "listen" "0.0.0.0:3000") (deepCopy .Values.config) -}}
{{- if .Values.fleet.enabled -}}
{{- $cluster := dict "key_file" "/run/secrets/rialto/cluster.key" "listen" (printf "0.0.0.0:%d" (int .Values.fleet.port)) "advertise" (printf "${POD_IP}:%d" (int .Values.fleet.port)) -}}
{{- if not .Values.fleet.urlSecret.name -}}
{{- $_ := set $cluster "url" .Values.fleet.url -}}
{{- end -}}
{{- $_ := set $config "cluster" $cluster -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
