package idempotent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	pb "payments/idempotencyv1"
)

// What a message of 4 MiB takes together with its headers.
const bodyMax = 3 << 20

// Of one connection, not of the operation: they are not recorded.
var hopByHop = map[string]bool{"Connection": true, "Content-Length": true, "Date": true,
	"Keep-Alive": true, "Server": true, "Transfer-Encoding": true}

// A string of RFC 8941, or a bare token as most clients send it.
var (
	quoted  = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])+)"$`)
	bare    = regexp.MustCompile(`^[!#-+\-.-:<-~]+$`)
	escaped = regexp.MustCompile(`\\(.)`)
)

// parseKey gives the key in the values of Idempotency-Key, or what is wrong.
func parseKey(values []string) (key, wrong string) {
	if len(values) == 0 || values[0] == "" {
		return "", "key-missing"
	}
	value := strings.TrimSpace(values[0])
	if match := quoted.FindStringSubmatch(value); match != nil && len(values) == 1 {
		return escaped.ReplaceAllString(match[1], "$1"), ""
	}
	if bare.MatchString(value) && len(values) == 1 {
		return value, ""
	}
	return "", "key-malformed"
}

// response is a whole response, and the http.ResponseWriter that gathers it.
type response struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *response) Write(piece []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(piece)
}

func (r *response) sendTo(w http.ResponseWriter) {
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(r.body.Len()))
	w.WriteHeader(r.status)
	w.Write(r.body.Bytes()) // A user who is gone has to ask again anyway.
}

// problem is an answer of RFC 9457; failed may be nil.
func problem(status int, kind string, failed *failure) *response {
	body := map[string]any{
		"type": "urn:idempotency:" + kind, "title": strings.ReplaceAll(kind, "-", " "), "status": status}
	answer := &response{status: status, header: http.Header{
		"Content-Type": {"application/problem+json"}}}
	if failed != nil {
		if failed.reason != "" {
			body["reason"] = failed.reason
		}
		if failed.field != "" {
			body["field"] = failed.field
		}
		answer.comeBackAfter(failed.retryAfter)
	}
	json.NewEncoder(&answer.body).Encode(body) // Strings and a number: no error.
	return answer
}

// unacceptable is the user's fault, or else the program's own.
func unacceptable(failed *failure) *response {
	if failed.field == "key" {
		return problem(http.StatusBadRequest, "key-malformed", failed)
	}
	return problem(http.StatusInternalServerError, "misconfigured", failed)
}

func (r *response) comeBackAfter(wait time.Duration) *response {
	if wait > 0 {
		r.header.Set("Retry-After", fmt.Sprint(math.Ceil(wait.Seconds())))
	}
	return r
}

// toMessage is the response as it is recorded. A body too long for a message is
// left out: what was done must not be done again because its answer was long.
func (r *response) toMessage() *pb.Response {
	message := &pb.Response{StatusCode: int32(r.status), BodyOmitted: r.body.Len() > bodyMax}
	if !message.BodyOmitted {
		message.Body = r.body.Bytes()
	}
	for name, values := range r.header {
		for _, value := range values {
			if !hopByHop[name] {
				message.Headers = append(message.Headers,
					&pb.Header{Name: name, Value: []byte(value)})
			}
		}
	}
	return message
}

// replayed is what was recorded, marked as such.
func replayed(recorded *pb.Response) *response {
	status := int(recorded.GetStatusCode())
	bodiless := status == http.StatusNoContent || status == http.StatusResetContent ||
		status == http.StatusNotModified
	if recorded.GetBodyOmitted() && !bodiless || status < 200 || status > 599 {
		return problem(http.StatusGone, "response-not-kept", nil)
	}
	answer := &response{status: status, header: http.Header{}}
	for _, header := range recorded.GetHeaders() {
		answer.header.Add(header.GetName(), string(header.GetValue()))
	}
	answer.header.Set("Idempotent-Replayed", "true")
	if recorded.GetHeadersOmitted() {
		answer.header.Set("Idempotent-Headers-Omitted", "true")
	}
	answer.body.Write(recorded.GetBody())
	return answer
}
