package idempotent

import (
	"crypto/sha256"
	"encoding/binary"
)

// RequestHash is the same in every language (tests/vectors/request_hash.tsv):
// SHA-256 over a version and the parts, each preceded by its length as 8 bytes,
// big-endian. Of an HTTP request: method, target, content type and body, as
// they came. Nothing is normalised.
func RequestHash(parts ...[]byte) []byte {
	digest := sha256.New()
	for _, part := range append([][]byte{[]byte("idempotency.request.v1")}, parts...) {
		digest.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		digest.Write(part)
	}
	return digest.Sum(nil)
}
