# Run by `cmake --install`, with `headers` (in `client_folder` or below),
# `rewritten_folder` and `header_folder` (below the prefix) set by
# package.cmake.
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REPLACE "#include \"client/" "#include \"idempotency/client/" text
         "${text}")
  if(text MATCHES "include[ \t]*[<\"]client/")
    message(FATAL_ERROR "${header}: includes a header of the client otherwise "
      "than by #include \"client/NAME.h\"")
  endif()
  file(RELATIVE_PATH name "${client_folder}" "${header}")
  file(WRITE "${rewritten_folder}/${name}" "${text}")
  get_filename_component(folder "${name}" DIRECTORY)
  file(INSTALL FILES "${rewritten_folder}/${name}"
       DESTINATION "${CMAKE_INSTALL_PREFIX}/${header_folder}/${folder}")
endforeach()
