// What stands below the rows of step 1.
import("/studio/page/phrases.mjs");
import("/studio/page/upload.mjs");
import("/studio/page/long.mjs");
