{{- define "trainmaster.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trainmaster.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "trainmaster.labels" -}}
{{ include "trainmaster.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The history's and the dashboard's pods: other labels than the operator's, whose Deployment selects by its name. */ -}}
{{- define "trainmaster.historySelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-history
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "trainmaster.historyLabels" -}}
{{ include "trainmaster.historySelector" . }}
app.kubernetes.io/component: history
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "trainmaster.dashboardSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-dashboard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "trainmaster.dashboardLabels" -}}
{{ include "trainmaster.dashboardSelector" . }}
app.kubernetes.io/component: dashboard
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* A pod without any right: it asks the API server with its viewers' tokens, and has none. */ -}}
{{- define "trainmaster.viewerPod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
# The restricted Pod Security Standard.
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The API server's authority, which every namespace has. */ -}}
{{- define "trainmaster.viewerVolumes" -}}
- name: api-server
  configMap: {name: kube-root-ca.crt}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{- define "trainmaster.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Egress to the API server, by its own ports and by its Service's (plugins see one or the other), and to DNS. */ -}}
{{- define "trainmaster.apiServerEgress" -}}
- ports:
  {{- range .Values.networkPolicy.apiServer.ports }}
  - {protocol: TCP, port: {{ . }}}
  {{- end }}
  {{- with .Values.networkPolicy.apiServer.cidrs }}
  to:
  {{- range . }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  {{- end }}
# DNS.
- to:
  - namespaceSelector:
      matchLabels: {kubernetes.io/metadata.name: kube-system}
  - ipBlock: {cidr: 169.254.20.10/32}
  ports:
  - {protocol: UDP, port: 53}
  - {protocol: TCP, port: 53}
{{- end -}}

{{- define "trainmaster.historyEgress" -}}
- to:
  - podSelector:
      matchLabels: {{- include "trainmaster.historySelector" . | nindent 8 }}
  ports:
  - {protocol: TCP, port: {{ .Values.history.port }}}
{{- end -}}

{{- define "trainmaster.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "trainmaster.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name: needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* An image by digest, else by tag: of a list of its values and the chart. */ -}}
{{- define "trainmaster.imageReference" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 1).AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* The API groups of gang schedulers' PodGroups. */ -}}
{{- define "trainmaster.gangGroups" -}}
volcano: scheduling.volcano.sh
coscheduling: scheduling.x-k8s.io
kubernetes: scheduling.k8s.io
{{- end -}}

{{- /* Not empty where the admission policy is installed. */ -}}
{{- define "trainmaster.admissionPolicy" -}}
{{- $served := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" -}}
{{- if eq (toString .Values.admissionPolicy.enabled) "auto" | ternary $served .Values.admissionPolicy.enabled -}}
yes
{{- end -}}
{{- end -}}

{{- /* What the operator does to a job and its children; the same for a ClusterRole and for a Role in each namespace. */ -}}
{{- define "trainmaster.rules" -}}
- apiGroups: [trainmaster.dev]
  resources: [distributedtrainingjobs]
  # delete: ttlSecondsAfterFinished
  verbs: [get, list, watch, delete]
- apiGroups: [trainmaster.dev]
  resources: [distributedtrainingjobs/status]
  verbs: [patch]
# Owning children needs this where the OwnerReferencesPermissionEnforcement admission plugin is on (OpenShift).
- apiGroups: [trainmaster.dev]
  resources: [distributedtrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  # delete: a namespace's agent (trainmaster-agent-*) goes with the last job that needs it.
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.jobNetworkPolicies.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- end }}
- apiGroups: [""]
  # One for each namespace's agents (trainmaster-agents-*). None is ever read.
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  # A pod is only deleted by force when its node is seen to be lost, and ranks follow the label that a job's topology
  # names. Nodes have no namespace: with `namespaces` set this grants nothing, such pods wait for an administrator, and
  # ranks keep the order of their indexes.
  resources: [nodes]
  verbs: [get]
- apiGroups: [""]
  # A set whose pods a quota refused is woken when the quota has changed.
  resources: [resourcequotas]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  # list: why a StatefulSet's pods aren't made is only told there.
  verbs: [create, patch, list]
{{- if eq .Values.operator.reach "proxy" }}
- apiGroups: [""]
  # The streams of the leads, and what is sent to them.
  resources: [pods/proxy]
  verbs: [get, create]
{{- end }}
{{- $groups := include "trainmaster.gangGroups" . | fromYaml }}
{{- if has "kueue" .Values.gangSchedulers }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  # Finished, PodsReady, and the quota that an evicted job gives back.
  resources: [workloads/status]
  verbs: [patch]
# Neither has a namespace: with `namespaces` set this grants nothing, and Kueue's jobs need a ClusterRole with it.
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}
{{- range .Values.gangSchedulers }}
{{- if hasKey $groups . }}
- apiGroups: [{{ get $groups . }}]
  # delete: a PodGroup reserves nothing for a job that is suspended or over.
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- end }}
{{- end -}}
