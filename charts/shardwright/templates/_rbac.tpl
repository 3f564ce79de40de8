{{/*
The operator's rights, all in this file. tests/support/rights.py holds the same as a table; tests ask
a real API server about every line of it.
*/}}

{{/*
Read of the whole cluster, whatever namespaces are served: any pod can hold a GPU.
*/}}
{{- define "shardwright.rules.cluster" -}}
- apiGroups: [""]
  resources: ["nodes", "persistentvolumes", "pods"]
  verbs: ["list", "watch"]
- apiGroups: ["resource.k8s.io"]
  resources: ["resourceslices"]
  verbs: ["list", "watch"]
# At its start the operator checks that the CRD knows every field it acts on.
- apiGroups: ["apiextensions.k8s.io"]
  resources: ["customresourcedefinitions"]
  resourceNames: ["llmdeployments.shardwright.dev"]
  verbs: ["get"]
{{- end -}}

{{/*
Where LLMDeployments are served. Of a Secret that a spec names it asks for the metadata only, to say
whether it exists; the kubelet mounts the value, and it is never read here. For each incarnation of
a replica of several stages it creates one Secret: the token that the pods of that incarnation share.
*/}}
{{- define "shardwright.rules.served" -}}
- apiGroups: ["shardwright.dev"]
  resources: ["llmdeployments"]
  verbs: ["list", "watch"]
- apiGroups: ["shardwright.dev"]
  resources: ["llmdeployments/status"]
  verbs: ["patch"]
- apiGroups: [""]
  resources: ["pods"]
  verbs: ["get", "create", "patch", "delete"]
- apiGroups: [""]
  resources: ["configmaps"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
- apiGroups: [""]
  resources: ["services"]
  verbs: ["get", "list", "watch", "create", "patch"]
- apiGroups: [""]
  resources: ["persistentvolumeclaims"]
  verbs: ["list", "watch"]
- apiGroups: [""]
  resources: ["secrets"]
  verbs: ["get", "create"]
- apiGroups: ["batch"]
  resources: ["jobs"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
- apiGroups: ["apps"]
  resources: ["controllerrevisions"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
- apiGroups: ["policy"]
  resources: ["poddisruptionbudgets"]
  verbs: ["get", "list", "watch", "create", "patch"]
- apiGroups: ["events.k8s.io"]
  resources: ["events"]
  verbs: ["create"]
{{- end -}}

{{/* In the operator's own namespace: its Lease. `create` cannot be bound to a name. */}}
{{- define "shardwright.rules.own" -}}
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["create"]
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  resourceNames: [{{ include "shardwright.leaseName" . | quote }}]
  verbs: ["get", "update"]
{{- end -}}
