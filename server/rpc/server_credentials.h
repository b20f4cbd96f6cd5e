// TLS of the gRPC listeners. The only file that uses gRPC's TLS interface, which is experimental.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include <grpcpp/security/server_credentials.h>

#include "server/config/tls_options.h"

namespace eplb {

// Seconds between two looks at the files. A new certificate holds for new connections.
inline constexpr unsigned int kTlsRefreshSeconds = 1;

// Peers must have a certificate that options.ca signed. Without TLS: plaintext.
// errors: those of wire::CheckTlsFiles.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options);

}  // namespace eplb
