{{- define "ferroxy.labels" -}}
k8s-app: kube-proxy
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ferroxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ferroxy.configMap" -}}
{{ .Values.existingConfigMap | default "kube-proxy" }}
{{- end }}

{{/* Both containers begin with these, after the command's name. */}}
{{- define "ferroxy.arguments" -}}
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What both containers have in common. */}}
{{- define "ferroxy.surroundings" -}}
image: {{ include "ferroxy.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
volumeMounts:
  - name: kube-proxy
    mountPath: /var/lib/kube-proxy
    readOnly: true
{{- end }}

{{/* The chart's own settings; those of `config` win. */}}
{{- define "ferroxy.config" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {{ .Values.mode }}
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
# What the kubelet gives a pod of the class system-node-critical: to go lower takes CAP_SYS_RESOURCE.
oomScoreAdj: -997
{{- if or .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
metricsBindAddress: 0.0.0.0:10249
{{- end }}
{{- end }}
