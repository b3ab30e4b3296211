package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

func TestOnlySignedRequestsAreAnswered(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "bucket", "a+b"), []byte("contents"), 0o644); err != nil {
		t.Fatal(err)
	}
	keys := aws.Credentials{AccessKeyID: "reader", SecretAccessKey: "open-sesame"}
	tests := httptest.NewServer(server{folder: folder, region: "us-east-1", keys: keys})
	defer tests.Close()
	for _, one := range []struct {
		name   string
		keys   aws.Credentials
		region string
		path   string
		age    time.Duration
		spoil  func(*http.Request)
		want   int
	}{
		{name: "right", keys: keys, region: "us-east-1", path: "/bucket/a%2Bb", want: http.StatusPartialContent},
		{name: "no object", keys: keys, region: "us-east-1", path: "/bucket/c", want: http.StatusNotFound},
		{name: "a bucket", keys: keys, region: "us-east-1", path: "/bucket", want: http.StatusNotFound},
		{name: "outside", keys: keys, region: "us-east-1", path: "/../a", want: http.StatusNotFound},
		{name: "another secret", keys: aws.Credentials{AccessKeyID: "reader", SecretAccessKey: "x"}, region: "us-east-1", path: "/bucket/a%2Bb", want: http.StatusForbidden},
		{name: "another user", keys: aws.Credentials{AccessKeyID: "x", SecretAccessKey: "open-sesame"}, region: "us-east-1", path: "/bucket/a%2Bb", want: http.StatusForbidden},
		{name: "another region", keys: keys, region: "eu-west-3", path: "/bucket/a%2Bb", want: http.StatusForbidden},
		{name: "old", keys: keys, region: "us-east-1", path: "/bucket/a%2Bb", age: time.Hour, want: http.StatusForbidden},
		{name: "another range", keys: keys, region: "us-east-1", path: "/bucket/a%2Bb", want: http.StatusForbidden,
			spoil: func(request *http.Request) { request.Header.Set("Range", "bytes=0-") }},
		{name: "unsigned", keys: keys, region: "us-east-1", path: "/bucket/a%2Bb", want: http.StatusForbidden,
			spoil: func(request *http.Request) { request.Header.Del("Authorization") }},
	} {
		request, err := http.NewRequest(http.MethodGet, tests.URL+one.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		empty := "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
		request.Header.Set("Range", "bytes=3-")
		request.Header.Set("X-Amz-Content-Sha256", empty)
		signer := v4.NewSigner(func(options *v4.SignerOptions) { options.DisableURIPathEscaping = true })
		when := time.Now().Add(-one.age)
		if err := signer.SignHTTP(context.Background(), one.keys, request, empty, service, one.region, when); err != nil {
			t.Fatal(err)
		}
		if one.spoil != nil {
			one.spoil(request)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != one.want {
			t.Errorf("%s: %s, not %d", one.name, answer.Status, one.want)
		}
	}
}
