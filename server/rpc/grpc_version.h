// The gRPC that this program runs on, and what an operator should know of it.
#pragma once

#include <string>
#include <string_view>

namespace eplb {

// "1.51.1".
std::string GrpcVersion();

// One sentence when a peer that reaches a server of this version can harm it by known faults of
// gRPC; empty otherwise, and for a version that cannot be read. Source: gRPC's security advisories
// CVE-2023-1428, CVE-2023-32731, CVE-2023-33953 and CVE-2023-4785, all mended in 1.56.2.
std::string GrpcAdvisory(std::string_view version);

}  // namespace eplb
