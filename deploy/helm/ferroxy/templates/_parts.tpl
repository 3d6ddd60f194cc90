{{- define "ferroxy.labels" -}}
k8s-app: kube-proxy
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Not empty for modes whose rules may be those of legacy iptables. */}}
{{- define "ferroxy.xtables" -}}
{{- if has .Values.mode (list "iptables" "ipvs" "userspace") }}xtables{{ end }}
{{- end }}

{{/* The image variant with the iptables tools, where they shall write the rules. */}}
{{- define "ferroxy.tools" -}}
{{- if eq (dig "iptables" "program" "" .Values.config) "tool" }}-iptables{{ end }}
{{- end }}

{{/* Not empty where connections are made at sockets. */}}
{{- define "ferroxy.sockets" -}}
{{- if ne .Values.sockets "off" }}{{ .Values.sockets }}{{ end }}
{{- end }}

{{- define "ferroxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ include "ferroxy.tools" . }}
{{- end }}

{{- define "ferroxy.configMap" -}}
{{ .Values.existingConfigMap | default "kube-proxy" }}
{{- end }}

{{/* The first arguments of both containers, after the command. */}}
{{- define "ferroxy.arguments" -}}
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- with include "ferroxy.sockets" . }}
- --accelerate-sockets={{ . }}
{{- end }}
{{- if .Values.page.enabled }}
- --page-address=0.0.0.0:{{ .Values.page.port }}
- --page-token-file=/var/lib/ferroxy-page/token
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Fields that both containers share. */}}
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
  {{- if .Values.page.enabled }}
  - name: page
    mountPath: /var/lib/ferroxy-page
    readOnly: true
  {{- end }}
  {{- if include "ferroxy.xtables" . }}
  - name: xtables-lock
    mountPath: /run/xtables.lock
  - name: modules
    mountPath: /lib/modules
    readOnly: true
  {{- end }}
  {{- if include "ferroxy.sockets" . }}
  - name: bpf
    mountPath: /sys/fs/bpf
  - name: cgroup
    mountPath: /sys/fs/cgroup
    readOnly: true
  {{- end }}
{{- end }}

{{/* Settings of the chart; `config` overrides them. */}}
{{- define "ferroxy.config" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {{ .Values.mode }}
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
# The value that the kubelet sets for a pod of class system-node-critical. A lower one needs CAP_SYS_RESOURCE.
oomScoreAdj: -997
{{- if or .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
metricsBindAddress: 0.0.0.0:10249
{{- end }}
{{- end }}

{{- define "ferroxy.windowsLabels" -}}
{{- mergeOverwrite (include "ferroxy.labels" . | fromYaml) (dict "k8s-app" "kube-proxy-windows") | toYaml }}
{{- end }}

{{/* Settings of Windows nodes; `windows.config` overrides them. */}}
{{- define "ferroxy.windowsConfig" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {{ .Values.windows.mode }}
clientConnection:
  kubeconfig: C:/var/lib/kube-proxy/kubeconfig.conf
{{- if eq .Values.windows.mode "kernelspace" }}
winkernel:
  networkName: {{ .Values.windows.networkName | quote }}
  sourceVip: {{ .Values.windows.sourceVip | quote }}
  enableDSR: {{ .Values.windows.enableDSR }}
{{- end }}
{{- if or .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
metricsBindAddress: 0.0.0.0:10249
{{- end }}
{{- end }}
