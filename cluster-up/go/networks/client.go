package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"sigs.k8s.io/yaml"
)

// client makes requests to the API server as the node.
type client struct {
	server string
	http   *http.Client
}

// newClient reads a kubeconfig as kubeadm writes it: one cluster, one user, all data inline.
func newClient(path string) (*client, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the node's credentials: %w", err)
	}
	var read struct {
		Clusters []struct {
			Cluster struct {
				Server    string `json:"server"`
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &read); err != nil {
		return nil, fmt.Errorf("read the node's credentials: %w", err)
	}
	if len(read.Clusters) != 1 || len(read.Users) != 1 {
		return nil, fmt.Errorf("%s is not of one cluster and one user", path)
	}
	certificate, err := tls.X509KeyPair(read.Users[0].User.Certificate, read.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("read the node's credentials: %w", err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(read.Clusters[0].Cluster.Authority)
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{certificate}},
		ForceAttemptHTTP2: true,
	}
	return &client{server: read.Clusters[0].Cluster.Server, http: &http.Client{Transport: transport}}, nil
}

// send makes a request and returns the answer's body, which the caller closes.
func (c *client) send(ctx context.Context, method, path string, body []byte) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		var status struct {
			Message string `json:"message"`
		}
		text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status.Message = string(text)
		}
		return nil, fmt.Errorf("%s: %s", response.Status, status.Message)
	}
	return response.Body, nil
}

// definition is the CNI configuration in a NetworkAttachmentDefinition.
func (c *client) definition(ctx context.Context, namespace, name string) (string, error) {
	path := fmt.Sprintf("/apis/k8s.cni.cncf.io/v1/namespaces/%s/network-attachment-definitions/%s",
		url.PathEscape(namespace), url.PathEscape(name))
	body, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	defer body.Close()
	var read struct {
		Spec struct {
			Config string `json:"config"`
		} `json:"spec"`
	}
	if err := json.NewDecoder(body).Decode(&read); err != nil {
		return "", err
	}
	return read.Spec.Config, nil
}

// note records on a pod what is attached to it. Nodes may do so together with a pod's status.
func (c *client) note(ctx context.Context, pod pod, status string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.uid, "annotations": map[string]string{statusAnnotation: status},
	}})
	if err != nil {
		return err
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/status", url.PathEscape(pod.namespace), url.PathEscape(pod.name))
	answer, err := c.send(ctx, http.MethodPatch, path, body)
	if err != nil {
		return fmt.Errorf("note on pod %s/%s what is attached: %w", pod.namespace, pod.name, err)
	}
	return answer.Close()
}
