{{/* The reference of an image: (list . "virt-operator"). By its digest where that is known, else by the tag. */}}
{{- define "barevirt.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $name := index . 1 -}}
{{- $digest := get ($image.digests | default dict) $name -}}
{{- if $digest -}}
{{ $image.registry }}/{{ $name }}@{{ $digest }}
{{- else -}}
{{ $image.registry }}/{{ $name }}:{{ $image.tag }}
{{- end -}}
{{- end -}}

{{/* What virt-operator is told of images with a digest. */}}
{{- define "barevirt.pinned" -}}
{{- if .Values.image.digests }}
- name: KUBEVIRT_VERSION
  value: {{ .Values.image.tag | quote }}
{{- range $name := list "virt-api" "virt-controller" "virt-handler" "virt-importer" "virt-launcher" "virt-passt" }}
{{- if get $.Values.image.digests $name }}
- name: {{ $name | replace "-" "_" | upper }}_IMAGE
  value: {{ include "barevirt.image" (list $ $name) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
