// Certificates from files that gRPC watches.
#include "server/rpc/server_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "base/status_macros.h"
#include "base/tls_files.h"

namespace eplb {

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  EPLB_RETURN_IF_ERROR(
      wire::CheckTlsFiles({.ca = options.ca, .cert = options.cert, .key = options.key}));
  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions settings(std::make_shared<tls::FileWatcherCertificateProvider>(
      options.key, options.cert, options.ca, kTlsRefreshSeconds));
  settings.watch_root_certs();
  settings.watch_identity_key_cert_pairs();
  settings.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(settings);
}

}  // namespace eplb
