{{- define "shardwright.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/*
The name of most objects, at most 50 characters so that suffixes fit a label. A Service must begin
with a letter, and a release may be called 123.
*/}}
{{- define "shardwright.fullname" -}}
{{- $name := include "shardwright.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else if regexMatch "^[0-9]" .Release.Name -}}
{{- printf "%s-%s" $name .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Every value is quoted: a release called y, on or 123 would otherwise be no string. */}}
{{- define "shardwright.selectorLabels" -}}
app.kubernetes.io/name: {{ include "shardwright.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: "operator"
{{- end -}}

{{- define "shardwright.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{ include "shardwright.selectorLabels" . }}
app.kubernetes.io/part-of: "shardwright"
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{- define "shardwright.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "shardwright.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is empty and serviceAccount.create is false: name the ServiceAccount that the operator should use, or let the chart create one" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "shardwright.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s:%s@%s" .Values.image.repository $tag .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "shardwright.leaseName" -}}
{{- default (include "shardwright.fullname" .) .Values.settings.lease.name -}}
{{- end -}}

{{/* The operator's configuration file: the user's settings and what the release knows itself. */}}
{{- define "shardwright.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $_ := set $settings "namespace" .Release.Namespace -}}
{{- $_ := set $settings "watchNamespaces" .Values.watchNamespaces -}}
{{- $_ := set $settings "operatorImage" (include "shardwright.image" .) -}}
{{- $_ := set $settings "httpPort" 8080 -}}
{{- $_ := set $settings.lease "name" (include "shardwright.leaseName" .) -}}
{{- toYaml $settings -}}
{{- end -}}
