// Reads the address of a daemon that is not known before the job starts from a variable, a file or
// a DNS record.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb {

// True of "env:NAME", "file:PATH" and "srv:NAME".
bool IsEndpointSource(std::string_view text);

// errors: InvalidArgument beginning with "endpoint is": a source without a name.
absl::Status CheckEndpointSource(std::string_view text);

struct EndpointSourceOptions {
  absl::Duration deadline = absl::Seconds(10);
  std::string name_server = {};  // "127.0.0.1:53"; empty: those of the system
};

// The endpoints, "HOST:PORT" or "A:1,B:2", that a source has now; any other text as it is.
//   env:NAME   the value of a variable, which may be a source of the other two kinds
//   file:PATH  its first line that is not blank; a file that is not there or empty is waited for
//   srv:NAME   the SRV records of a DNS name, e.g. srv:_eplb._tcp.train.example.org; by priority,
//              then by falling weight, then by name, so that every rank has them in one order
// errors, which name the source: NotFound for a variable that is not set and a name without
// records; DeadlineExceeded for a file; Unavailable for DNS.
// threads: safe; a variable must not change meanwhile. cost: blocks until the deadline at most; DNS
// is asked for at most 6 s.
absl::StatusOr<std::string> ReadEndpointSource(const std::string& text,
                                               const EndpointSourceOptions& options = {});

// The endpoints of a DNS answer, in that order. errors: InvalidArgument for bytes that are none;
// NotFound for one without SRV records.
absl::StatusOr<std::string> EndpointsOfSrvAnswer(std::span<const uint8_t> answer);

}  // namespace eplb
