// Step 2 is two modules: the list, check_list.mjs, and its rows, check_row.mjs.
import("/studio/page/check_list.mjs");
