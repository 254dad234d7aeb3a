# Run by `cmake --install`, with `headers` (below `client_folder`),
# `rewritten_folder` and `header_folder` (below the prefix) set by package.cmake.
foreach(header IN LISTS headers)
  file(READ "${client_folder}/${header}" text)
  string(REPLACE "#include \"client/" "#include \"idempotency/client/" text
         "${text}")
  if(text MATCHES "include[ \t]*[<\"]client/")
    message(FATAL_ERROR "${header}: includes a header of the client otherwise "
      "than by #include \"client/NAME.h\"")
  endif()
  file(WRITE "${rewritten_folder}/${header}" "${text}")
  get_filename_component(folder "${header}" DIRECTORY)
  file(INSTALL "${rewritten_folder}/${header}"
       DESTINATION "${CMAKE_INSTALL_PREFIX}/${header_folder}/${folder}")
endforeach()
