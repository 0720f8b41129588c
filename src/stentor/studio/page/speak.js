// The page's head holds plain scripts; step 1 is made of modules.
import("/studio/page/speak.mjs");
