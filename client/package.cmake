# What `cmake --install` gives to a user of the client: the library, its headers
# and a package that find_package and pkg-config find. transaction/ adds to it,
# by the functions below.
#
# In the tree the headers are "client/NAME.h", "client/http/NAME.h" and
# "client/grpc/NAME.h", which are no names to put into an include folder of the
# system: they are installed as "idempotency/client/...", and what they include
# of each other with them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/idempotency)

# install_client_headers(COMPONENT header...), each named from this folder.
function(install_client_headers COMPONENT)
  install(CODE "
set(client_folder \"${IDEMPOTENCY_CLIENT_FOLDER}\")
set(headers \"${ARGN}\")
set(rewritten_folder \"${CMAKE_CURRENT_BINARY_DIR}/installed_headers\")
set(header_folder \"${CMAKE_INSTALL_INCLUDEDIR}/idempotency/client\")"
    COMPONENT ${COMPONENT})
  install(SCRIPT ${IDEMPOTENCY_CLIENT_FOLDER}/install_headers.cmake
    COMPONENT ${COMPONENT})
endfunction()

set(IDEMPOTENCY_CLIENT_FOLDER ${CMAKE_CURRENT_SOURCE_DIR})
file(GLOB client_headers CONFIGURE_DEPENDS
     RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.h http/*.h grpc/*.h)
list(REMOVE_ITEM client_headers ${IDEMPOTENCY_CLIENT_OWN_HEADERS})
install_client_headers(client ${client_headers})

set_target_properties(idempotency_client PROPERTIES EXPORT_NAME client)
set_target_properties(idempotency_http PROPERTIES EXPORT_NAME http)
install(TARGETS idempotency_client idempotency_http EXPORT idempotency
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)

# ------------------------------------------------------------ find_package

install(EXPORT idempotency NAMESPACE idempotency:: FILE idempotencyTargets.cmake
  DESTINATION ${package_folder} COMPONENT client)
configure_package_config_file(idempotencyConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/idempotencyConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/idempotencyConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/idempotencyConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/idempotencyConfigVersion.cmake
  DESTINATION ${package_folder} COMPONENT client)

# -------------------------------------------------------------- pkg-config

# From the folder of the .pc file to the prefix: an installed tree may be moved.
file(RELATIVE_PATH pc_to_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" pc_to_prefix ${pc_to_prefix})

# install_pc_file(NAME COMPONENT archive...) makes NAME.pc of NAME.pc.in. What
# the archives need is in it by the names that pkg-config knows it by, so that a
# library linked to them cannot be forgotten there.
function(install_pc_file NAME COMPONENT)
  set(pc_requires)
  foreach(archive IN LISTS ARGN)
    get_target_property(libraries ${archive} LINK_LIBRARIES)
    foreach(library IN LISTS libraries)
      if(library MATCHES "^absl::(.*)$")
        list(APPEND pc_requires absl_${CMAKE_MATCH_1})
      elseif(library STREQUAL "gRPC::grpc++")
        list(APPEND pc_requires grpc++)
      elseif(library STREQUAL "protobuf::libprotobuf")
        list(APPEND pc_requires protobuf)
      elseif(library STREQUAL "OpenSSL::Crypto")
        list(APPEND pc_requires libcrypto)
      elseif(library STREQUAL "OpenSSL::SSL")
        list(APPEND pc_requires libssl libcrypto)
      elseif(library STREQUAL "PkgConfig::IDEMPOTENCY_POSTGRES")
        list(APPEND pc_requires libpqxx libpq)
      elseif(NOT library MATCHES "^\\$<BUILD_INTERFACE:"
             AND NOT library MATCHES
                 "^(idempotency_client|idempotency_proto|Threads::Threads)$")
        message(FATAL_ERROR "${archive} links ${library}: name its package in "
          "idempotencyConfig.cmake.in and in package.cmake, which make the "
          "installed package.")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES pc_requires)
  list(JOIN pc_requires " " pc_requires)
  configure_file(${NAME}.pc.in ${NAME}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${COMPONENT})
endfunction()

install_pc_file(idempotency client
  idempotency_http idempotency_grpc idempotency_client idempotency_proto)
