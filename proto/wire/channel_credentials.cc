#include "proto/wire/channel_credentials.h"

#include <fstream>
#include <iterator>

#include "base/status_macros.h"

namespace eplb::wire {
namespace {

// CheckTlsFiles has found them readable.
std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files, grpc::ChannelArguments* arguments) {
  if (!files.enabled()) return grpc::InsecureChannelCredentials();
  EPLB_RETURN_IF_ERROR(CheckTlsFiles(files));
  if (!files.server_name.empty()) arguments->SetSslTargetNameOverride(files.server_name);
  return grpc::SslCredentials({.pem_root_certs = Read(files.ca),
                               .pem_private_key = Read(files.key),
                               .pem_cert_chain = Read(files.cert)});
}

}  // namespace eplb::wire
