{{- /* The templates below take a dict: `root`, `component`, and for pods `gpus` and `of`, the values of the component. */}}

{{- define "headrace.name" -}}
{{ .root.Release.Name }}-{{ .component }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "headrace.metadata" -}}
name: {{ include "headrace.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "headrace.selector" . | nindent 2 }}
{{- end }}

{{- /* Options of a command from a map. A list repeats its option; false and null leave it out. */}}
{{- define "headrace.options" -}}
{{- range $name, $value := . }}
{{- if kindIs "invalid" $value }}
{{- else if kindIs "bool" $value }}
{{- if $value }}
- --{{ $name }}
{{- end }}
{{- else }}
{{- range (kindIs "slice" $value | ternary $value (list $value)) }}
{{- $whole := and (kindIs "float64" .) (eq (floor .) .) }}
- {{ printf "--%s=%v" $name ($whole | ternary (int64 .) .) | toYaml }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* All of a pod's spec but its containers, its volumes and its grace period. */}}
{{- define "headrace.pod" -}}
serviceAccountName: {{ .root.Release.Name }}{{ eq .component "scale" | ternary "-scale" "" }}
automountServiceAccountToken: {{ eq .component "scale" }}
# A service named headrace would set HEADRACE_PORT, which is an option of headrace.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "headrace.selector" . | nindent 8 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .of.tolerations | default list }}
{{- if .of.gpus }}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* All of a container but its arguments, ports, probes and volume mounts. */}}
{{- define "headrace.container" -}}
{{- $image := .root.Values.image -}}
image: {{ $image.repository }}{{ empty .of.gpus | ternary "" "-cuda" }}:{{ $image.tag | default .root.Chart.AppVersion }}
imagePullPolicy: {{ $image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
envFrom:
  - secretRef:
      name: {{ .root.Values.environmentSecret }}
{{- $resources := deepCopy .of.resources }}
{{- if .of.gpus }}
{{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" (int64 .of.gpus)) ($resources.limits | default dict)) }}
{{- end }}
resources:
  {{- toYaml $resources | nindent 2 }}
{{- end }}

{{- define "headrace.mounts" -}}
- {name: settings, mountPath: /etc/headrace, readOnly: true}
- {name: temporary, mountPath: /tmp}
{{- end }}

{{- define "headrace.volumes" -}}
- name: settings
  secret:
    secretName: {{ .root.Values.settingsSecret }}
    defaultMode: 0440
- name: temporary
  emptyDir: {}
{{- end }}

{{- /* Those of a pod that runs models. */}}
{{- define "headrace.modelMounts" -}}
{{ include "headrace.mounts" . }}
- {name: cache, mountPath: /var/cache/headrace}
{{- if .root.Values.modelVolume }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{- define "headrace.modelVolumes" -}}
{{ include "headrace.volumes" . }}
- name: cache
  {{- .root.Values.cacheVolume | default (dict "emptyDir" dict) | toYaml | nindent 2 }}
{{- with .root.Values.modelVolume }}
- name: models
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* One voluntary eviction at a time. Pods that are not ready do not delay the drain of their node. */}}
{{- define "headrace.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "headrace.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "headrace.selector" . | nindent 6 }}
{{- end }}

{{- define "headrace.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "headrace.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "headrace.selector" . | nindent 6 }}
  policyTypes: [Ingress]
{{- end }}
