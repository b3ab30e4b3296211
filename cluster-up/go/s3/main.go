// Program s3 serves a folder as objects of S3, to clients that sign their requests (AWS signature, version 4).
//
// The folders in it are buckets, and the files in these are objects; they are only read. Each request is signed again by Amazon's own
// signer, from the header lines that the client has signed, and the signatures are compared.
package main

import (
	"context"
	"crypto/subtle"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	algorithm = "AWS4-HMAC-SHA256"
	service   = "s3"
	day       = "20060102"
	moment    = "20060102T150405Z"
	// By how much clocks may differ.
	skew = 15 * time.Minute
)

type server struct {
	folder string
	region string
	keys   aws.Credentials
	// Bytes in a second, 0 for as many as possible.
	rate int
}

// Returns the code of S3 for what is wrong with the signature of a request; nothing if it is right.
func (s server) problem(request *http.Request, now time.Time) string {
	given, isSigned := strings.CutPrefix(request.Header.Get("Authorization"), algorithm+" ")
	if !isSigned {
		return "AccessDenied"
	}
	parts := map[string]string{}
	for _, part := range strings.Split(given, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		parts[name] = value
	}
	date, err := time.Parse(moment, request.Header.Get("X-Amz-Date"))
	if err != nil {
		return "AccessDenied"
	}
	if now.Sub(date).Abs() > skew {
		return "RequestTimeTooSkewed"
	}
	key, scope, _ := strings.Cut(parts["Credential"], "/")
	if key != s.keys.AccessKeyID {
		return "InvalidAccessKeyId"
	}
	if scope != strings.Join([]string{date.Format(day), s.region, service, "aws4_request"}, "/") {
		return "AuthorizationHeaderMalformed"
	}
	right, err := s.signature(request, strings.Split(parts["SignedHeaders"], ";"), date)
	if err != nil {
		return "InternalError"
	}
	if subtle.ConstantTimeCompare([]byte(right), []byte(parts["Signature"])) != 1 {
		return "SignatureDoesNotMatch"
	}
	return ""
}

// Signs a request again, with these of its header lines. The signer adds the host and the date.
func (s server) signature(request *http.Request, names []string, date time.Time) (string, error) {
	address := *request.URL
	again := &http.Request{Method: request.Method, Host: request.Host, URL: &address, Header: http.Header{}}
	for _, name := range names {
		if values := request.Header.Values(name); len(values) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	signer := v4.NewSigner(func(options *v4.SignerOptions) { options.DisableURIPathEscaping = true })
	body := request.Header.Get("X-Amz-Content-Sha256")
	if err := signer.SignHTTP(context.Background(), s.keys, again, body, service, s.region, date); err != nil {
		return "", err
	}
	_, signature, _ := strings.Cut(again.Header.Get("Authorization"), "Signature=")
	return signature, nil
}

func refuse(writer http.ResponseWriter, status int, code string) {
	writer.Header().Set("Content-Type", "application/xml")
	writer.WriteHeader(status)
	fmt.Fprintf(writer, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code></Error>\n", code)
}

func (s server) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		refuse(writer, http.StatusMethodNotAllowed, "MethodNotAllowed")
		return
	}
	if code := s.problem(request, time.Now()); code != "" {
		log.Printf("%s %s: %s", request.Method, request.URL.Path, code)
		refuse(writer, http.StatusForbidden, code)
		return
	}
	file, err := os.OpenInRoot(s.folder, strings.TrimPrefix(request.URL.Path, "/"))
	if err != nil {
		refuse(writer, http.StatusNotFound, "NoSuchKey")
		return
	}
	defer file.Close()
	about, err := file.Stat()
	if err != nil || about.IsDir() {
		refuse(writer, http.StatusNotFound, "NoSuchKey")
		return
	}
	writer.Header().Set("Content-Type", "binary/octet-stream")
	writer.Header().Set("ETag", fmt.Sprintf("\"%x-%x\"", about.ModTime().UnixNano(), about.Size()))
	if s.rate > 0 {
		writer = slow{writer, s.rate}
	}
	http.ServeContent(writer, request, "", about.ModTime(), file)
}

// Writes that many bytes in a second.
type slow struct {
	http.ResponseWriter
	rate int
}

func (w slow) Write(bytes []byte) (int, error) {
	time.Sleep(time.Duration(len(bytes)) * time.Second / time.Duration(w.rate))
	return w.ResponseWriter.Write(bytes)
}

func main() {
	var s server
	listen := flag.String("listen", ":8080", "address to listen on")
	certificate := flag.String("certificate", "", "file with a certificate, for TLS")
	key := flag.String("key", "", "file with the certificate's key")
	flag.StringVar(&s.folder, "folder", "/files", "folder with the buckets")
	flag.StringVar(&s.region, "region", "us-east-1", "region of the server")
	flag.StringVar(&s.keys.AccessKeyID, "access-key", "", "access key of the one client")
	flag.StringVar(&s.keys.SecretAccessKey, "secret-key", "", "its secret key")
	flag.IntVar(&s.rate, "rate", 0, "bytes in a second for each request, 0 for no limit")
	flag.Parse()
	if s.keys.AccessKeyID == "" || s.keys.SecretAccessKey == "" {
		log.Fatal("-access-key and -secret-key are needed")
	}
	if *certificate != "" {
		log.Fatal(http.ListenAndServeTLS(*listen, *certificate, *key, s))
	}
	log.Fatal(http.ListenAndServe(*listen, s))
}
