// Digests over length-framed parts: no two lists of parts have the same bytes
// under the digest. A part is framed by its length as 8 bytes, big-endian.
#ifndef IDEMPOTENCY_SERVER_CORE_DIGEST_H_
#define IDEMPOTENCY_SERVER_CORE_DIGEST_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "server/core/types.h"

namespace idempotency {

// Appends `part`, framed, to `out`.
void AppendFramed(std::string_view part, std::string& out);

// SHA-256 over the framed decimal status code, the flags as "00" to "11"
// (body omitted, headers omitted), the encoded headers and the body: 32 bytes.
std::string ResponseDigest(const Response& response_as_sent);

// What to send to the payment channel as its idempotency key: the UUIDv5 of
// framed scope, key and decimal count of releases that freed the key.
std::string DownstreamKey(const Uuid& name_space, const RecordId& id,
                          std::int32_t freed_count);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_DIGEST_H_
